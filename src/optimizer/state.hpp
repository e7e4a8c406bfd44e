#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/device.hpp"
#include "optimizer/methods/normuon.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Selects which rank stores a kind of state. Usually the state is stored with the shard of the
/// parameter. If the gradients are partial or have a different layout, the owner of the matrix
/// (Muon) or of the slice (AdamW) stores it. NorMuon's moments are always stored by the owner of
/// the neuron's matrix.
enum class StateLocation : int32_t {
  kShard = 0,
  kOwnedMatrices = 1,
  kOwnedSlices = 2,
  kOwnedNeurons = 3
};

struct StateView {
  void* data;
  int64_t numel;
  int32_t dtype;  // MUONRT_DTYPE_*; 0 means 16-bit remainders
  StateLocation location = StateLocation::kShard;
};

/// A range of state that is not stored with the shard. The ranges of a StateEntry are stored one
/// after the other, except ranges of neurons, which are stored at their `begin`.
struct StateRange {
  int64_t index;  // index of the matrix, ordered by expert, then by part; -1 for kOwnedSlices
  /// The first local element for kOwnedSlices, the first neuron for kOwnedNeurons, and 0 for
  /// kOwnedMatrices.
  int64_t begin;
  int64_t numel;
};

/// One kind of state of a parameter. `numel`, `data` and `blocks` describe what this rank stores;
/// only State sets them.
struct StateEntry {
  int32_t param;
  StateKind kind;
  StateLocation location;
  DType dtype;       // remainders use any 2-byte dtype
  bool ours = true;  // false if it is stored in the caller's memory
  int64_t numel = 0;
  void* data = nullptr;
  std::vector<StateRange> blocks = {};  // empty if `location` is kShard
};

const char* name_of(StateKind kind);
StateView view_of(const StateEntry& entry);

/// Returns the kinds of state of a parameter, and where they are stored. The plan uses this list,
/// too, to compute the bytes of the state.
std::vector<StateEntry> state_of(const OptimizerSettings& settings, int32_t param);

/// The state of all parameters on one rank, and its memory.
class State {
 public:
  State() = default;
  /// Allocates the memory. Sets only NorMuon's moments to zero.
  State(Device& device, const OptimizerSettings& settings, const Plan& plan,
        const std::vector<RankChunk>& chunks, int rank);
  /// Sets state to zero, and owned master weights to the values of the parameters. Runs on the
  /// device after the caller's work on the default stream, because that work may still be writing
  /// the parameters. Blocks.
  void initialize(Device& device, const OptimizerSettings& settings);
  /// Resets the owned master weights of these parameters to the values of the parameters, and their
  /// remainders to zero, as initialize() does.
  void reset_masters(Device& device, const OptimizerSettings& settings,
                     const std::vector<int64_t>& params);

  /// Returns the entries of all parameters, in the order of the parameters.
  const std::vector<StateEntry>& entries() const { return entries_; }
  /// Returns the entries of the parameters [first, end).
  std::span<const StateEntry> entries_of(int64_t first, int64_t end) const {
    const size_t begin = first_[static_cast<size_t>(first)];
    return {entries_.data() + begin, first_[static_cast<size_t>(end)] - begin};
  }
  /// Returns null if the parameter has no state of this kind.
  const StateEntry* find(int64_t param, StateKind kind) const;
  /// Returns an entry of a parameter. `name` is the parameter's name, for error messages.
  /// Errors: INVALID_STATE if the parameter has no state of this kind; INVALID_ARGUMENT if the kind
  /// does not exist.
  const StateEntry& at(int64_t param, StateKind kind, const std::string& name) const;
  const NormuonMemory& normuon() const { return normuon_; }

 private:
  /// @param clears  If true, also sets all other state to zero.
  void set_masters(Device& device, const OptimizerSettings& settings,
                   const std::vector<int64_t>& params, bool clears);

  std::vector<StateEntry> entries_;
  std::vector<size_t> first_;  // first entry of each parameter; at the end, the number of entries
  Buffer memory_;
  NormuonMemory normuon_;
};

}  // namespace muonrt
