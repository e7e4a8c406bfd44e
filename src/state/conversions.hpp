#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/state_shards.hpp"

namespace muonrt {

/// Returns the value of an element as f32.
/// @param dtype  "F32" or "BF16".
float value_at(const std::string& dtype, const unsigned char* at);

/// Multiplies elements by a factor in double precision and rounds each product once.
std::vector<unsigned char> scaled(std::span<const unsigned char> values, const std::string& dtype,
                                  double factor);

/// Returns the kind of state from which `kind` can be computed, or -2 if there is none. A parameter
/// can be computed from its master weights. A bf16 parameter with its remainders can be computed
/// from master weights, and vice versa.
int32_t other_form(int32_t kind);

/// Rounds f32 master weights to this dtype in the same way as a step does.
std::vector<unsigned char> rounded(std::span<const unsigned char> masters,
                                   const std::string& dtype);

/// f32 weights, split into bf16 parameters and 16-bit remainders.
struct SplitWeights {
  std::vector<unsigned char> params, remainders;
};
SplitWeights split_weights(std::span<const unsigned char> masters);
std::vector<unsigned char> join_weights(std::span<const unsigned char> params,
                                        std::span<const unsigned char> remainders);

}  // namespace muonrt
