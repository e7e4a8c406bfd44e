#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/device.hpp"
#include "optimizer/methods/normuon.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Where state lies: with the local elements of the parameter; where gradients are addends, with
/// the owners of matrices or slices; NorMuon's, with the owners of the lines' matrices.
enum class StateLocation : int32_t {
  kShard = 0,
  kOwnedMatrices = 1,
  kOwnedSlices = 2,
  kOwnedNeurons = 3
};

struct StateView {
  void* data;
  int64_t numel;
  int32_t dtype;  // as MUONRT_DTYPE_..., 0: 16-bit words
  StateLocation location = StateLocation::kShard;
};

/// A piece of a view whose place is not local. Pieces lie one after the other; those of kLines lie
/// where they begin.
struct StateRange {
  int64_t index;  // kMatrices, kLines: of the matrix, expert by expert, part by part; kSlices: -1
  int64_t begin;  // kSlices: its first local element; kLines: its first line; kMatrices: 0
  int64_t numel;
};

/// One kind of state of a parameter. What this rank holds of it is set by State alone.
struct StateEntry {
  int32_t param;
  StateKind kind;
  StateLocation location;
  DType dtype;       // a remainder's is any of 2 bytes
  bool ours = true;  // else the caller's memory
  int64_t numel = 0;
  void* data = nullptr;
  std::vector<StateRange> blocks = {};  // where `place` is not local
};

const char* name_of(StateKind kind);
StateView view_of(const StateEntry& entry);

/// What a parameter keeps, on whichever ranks. The plan states its bytes from here.
std::vector<StateEntry> state_of(const OptimizerSettings& settings, int32_t param);

/// The state of all parameters on one rank, and its memory.
class State {
 public:
  State() = default;
  /// Takes the memory; only NorMuon's is cleared yet.
  State(Device& device, const OptimizerSettings& settings, const Plan& plan,
        const std::vector<RankChunk>& chunks, int rank);
  /// Zero, but owned masters are the parameters' values, which the caller's default stream may have
  /// yet to write. On the device, whose memory the host need not reach.
  void start(Device& device, const OptimizerSettings& settings);
  /// Owned masters of these parameters <- their values; remainders <- 0. As at the start.
  void reset_masters(Device& device, const OptimizerSettings& settings,
                     const std::vector<int64_t>& list);

  /// Parameter by parameter.
  const std::vector<StateEntry>& entries() const { return entries_; }
  /// Null where the parameter keeps none such.
  const StateEntry* find(int64_t param, StateKind kind) const;
  /// Errors: INVALID_STATE where the parameter, called `name`, keeps none such; INVALID_ARGUMENT
  /// for a kind that is none.
  const StateEntry& at(int64_t param, StateKind kind, const std::string& name) const;
  const NormuonMemory& normuon() const { return normuon_; }

 private:
  std::vector<StateEntry> entries_;
  std::vector<size_t> first_;  // by parameter, and the end
  void take(Device& device, const OptimizerSettings& settings, const std::vector<int64_t>& list,
            bool clears);

  Buffer memory_;
  NormuonMemory normuon_;
};

}  // namespace muonrt
