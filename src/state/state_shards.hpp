#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/extent.hpp"

namespace muonrt {

/// A state tensor: one kind of state of a parameter, or the parameter itself.
struct StateTensor {
  /// The value of `kind` for a parameter itself. All other kinds are values of StateKind.
  static constexpr int32_t kParam = -1;

  int64_t param;
  std::string name;  // name of the parameter
  int32_t kind;
  std::string dtype;  // name of the dtype in safetensors
  int64_t numel;      // number of elements of the whole tensor; for NorMuon, the number of neurons
  StateLocation location = StateLocation::kShard;
};

/// Returns the name of a kind, for example "momentum". Returns "" if there is no such kind.
const char* kind_name(int32_t kind);
/// Returns the kind with this name, or -2 if there is none.
int32_t kind_from_name(std::string_view name);
int64_t bytes_of(const StateTensor& tensor);  // size of one element
/// Returns true for momentum, AdamW's variance and NorMuon's moments, which all start at zero.
bool is_moment(int32_t kind);

/// The elements of a state tensor that this rank holds.
struct StateShard {
  StateTensor tensor;
  Extent extent;
  void* data;
  /// The range of elements of this shard that this rank writes to a checkpoint.
  int64_t write_begin = 0, write_end = 0;
};

/// Returns the state tensors of all parameters, parameter by parameter, on whichever rank they are
/// stored. The parameters themselves are not included.
std::vector<StateTensor> state_tensors(const OptimizerSettings& settings);
/// Returns the tensor that is the parameter itself.
StateTensor tensor_of_param(const OptimizerSettings& settings, int64_t param);

/// Returns the nonempty shards that this rank holds. If multiple ranks hold the same elements, they
/// divide the work of writing them.
std::vector<StateShard> local_state_shards(const Optimizer& optimizer, bool with_params);

/// Returns true if the state of a parameter contains its f32 master weights.
bool has_masters(const OptimizerSettings& settings, int64_t param);

}  // namespace muonrt
