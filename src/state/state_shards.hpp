#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/extent.hpp"

namespace muonrt {

/// One tensor of state: a kind of state of a parameter, or the parameter itself.
struct StateTensor {
  /// As StateKind, and besides those
  static constexpr int32_t kParam = -1;

  int64_t param;
  std::string name;  // of the parameter
  int32_t kind;
  std::string dtype;  // as safetensors names it
  int64_t numel;      // of the whole tensor; NorMuon: lines
  StateLocation location = StateLocation::kShard;
};

/// "momentum"; "" for a kind that is none.
const char* kind_name(int32_t kind);
/// The kind called so; -2 where there is none.
int32_t kind_from_name(std::string_view word);
int64_t bytes_of(const StateTensor& tensor);  // of an element
/// Momentum, AdamW's variance, NorMuon's moments: zero at the start.
bool is_moment(int32_t kind);

/// A piece of such a tensor on this rank, and where it lies.
struct StateShard {
  StateTensor tensor;
  Extent extent;
  void* data;
  /// Whether this rank is to write it: of [first, last) it alone.
  int64_t write_begin = 0, write_end = 0;
};

/// The tensors of state of all parameters, whoever holds them, parameter by parameter.
std::vector<StateTensor> state_tensors(const OptimizerSettings& settings, bool with_params);

/// What this rank holds, none empty. What several ranks hold they share to write.
std::vector<StateShard> local_state_shards(const Optimizer& optimizer, bool with_params);

}  // namespace muonrt
