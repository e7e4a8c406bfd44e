#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/copy_list.hpp"
#include "plan/method.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// One matrix of the world: a 2-D parameter, or one expert of a stack.
struct Matrix {
  int32_t param;
  int64_t index;  // expert, 0 for a 2-D parameter
  int64_t rows, cols;
  Method method;
  double flops;
  int32_t owner;    // rank
  int32_t replica;  // which replica of the layout the owner gathers from
  int32_t slot;
};

struct Slot {
  std::vector<int32_t> matrices;  // ascending ids
  int64_t bytes;                  // of the whole matrices, transport dtype
};

/// Bytes a rank needs, by kind; stated before it is taken.
struct MemoryPlan {
  int64_t message_bytes = 0;  // send and receive buffers of the window
  int64_t staged_bytes = 0;   // returned updates that wait for the vote (atomic)
  int64_t state_bytes = 0;    // momentum, AdamW moments
};

/// Who owns which matrix, in which chunk slot it travels. Immutable; equal on every rank.
class Plan {
 public:
  /// Errors: INVALID_ARGUMENT for a bad owner, a Muon parameter that is not a matrix, an empty
  /// mesh.
  explicit Plan(Problem problem);

  const Problem& problem() const { return problem_; }
  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<Slot>& slots() const { return slots_; }

  /// What `rank` does in every slot, in world order; slots in which it takes no part are left out.
  std::vector<SlotPlan> rank_slots(int rank) const;
  MemoryPlan memory(int rank) const;

  /// Load of the busiest rank, and the best lower bound known for it, in FLOPs.
  double makespan() const { return makespan_; }
  double lower_bound() const { return lower_bound_; }
  const std::vector<double>& load() const { return load_; }  // per rank

  /// For a person: owners, slots, bytes, balance; at most `max_rows` parameter rows (0: all).
  std::string describe(int64_t max_rows = 0) const;
  std::string json() const;
  uint64_t hash() const;

 private:
  Problem problem_;
  std::vector<Matrix> matrices_;
  std::vector<Slot> slots_;
  std::vector<double> load_;
  double makespan_ = 0, lower_bound_ = 0;
};

}  // namespace muonrt
