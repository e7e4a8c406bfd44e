#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/extent.hpp"

namespace muonrt {

/// One tensor of state: a kind of state of a parameter, or the parameter itself.
struct StateTensor {
  /// The `kind` of a parameter itself; other kinds are those of StateKind.
  static constexpr int32_t kParam = -1;

  int64_t param;
  std::string name;  // of the parameter
  int32_t kind;
  std::string dtype;  // as safetensors names it
  int64_t numel;      // of the whole tensor; NorMuon: number of neurons
  StateLocation location = StateLocation::kShard;
};

/// Returns the name of a kind, such as "momentum", or "" if there is no such kind.
const char* kind_name(int32_t kind);
/// Returns the kind with this name, or -2 if there is none.
int32_t kind_from_name(std::string_view name);
int64_t bytes_of(const StateTensor& tensor);  // of an element
/// Returns whether a kind is momentum, AdamW's variance or NorMuon's moments, which start at zero.
bool is_moment(int32_t kind);

/// The part of a state tensor that this rank holds.
struct StateShard {
  StateTensor tensor;
  Extent extent;
  void* data;
  /// The part that this rank writes to a checkpoint, in elements of the shard.
  int64_t write_begin = 0, write_end = 0;
};

/// Returns the state tensors of all parameters without the parameters themselves, on whichever rank
/// they are, parameter by parameter.
std::vector<StateTensor> state_tensors(const OptimizerSettings& settings);
/// Returns a parameter itself.
StateTensor tensor_of_param(const OptimizerSettings& settings, int64_t param);

/// Returns the shards that this rank holds, without empty ones. Ranks that hold the same elements
/// divide the work of writing them.
std::vector<StateShard> local_state_shards(const Optimizer& optimizer, bool with_params);

/// Returns whether the state of a parameter has its f32 master weights.
bool has_masters(const OptimizerSettings& settings, int64_t param);

}  // namespace muonrt
