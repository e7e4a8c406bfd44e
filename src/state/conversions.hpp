#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/state_shards.hpp"

namespace muonrt {

/// An element as a number. @param dtype  "F32" or "BF16".
float value_at(const std::string& dtype, const unsigned char* at);

/// Elements times a factor, in double, rounded once.
std::vector<unsigned char> scaled(std::span<const unsigned char> values, const std::string& dtype,
                                  double factor);

/// What this kind of state can be made from, with a bf16 parameter, where it was not saved: master
/// weights and remainders; -2: nothing.
int32_t other_form(int32_t kind);

/// f32 weights as the parameter's bits and the remainders.
struct SplitWeights {
  std::vector<unsigned char> params, remainders;
};
SplitWeights split_weights(std::span<const unsigned char> masters);
std::vector<unsigned char> join_weights(std::span<const unsigned char> params,
                                        std::span<const unsigned char> remainders);

}  // namespace muonrt
