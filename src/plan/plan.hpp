#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/method.hpp"
#include "plan/owners/holder_table.hpp"
#include "plan/problem.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

class JsonWriter;

/// One matrix of the world: a 2-D parameter, or one expert of a stack.
struct Matrix {
  int32_t param;
  int64_t index;  // expert, 0 for a 2-D parameter
  int64_t rows, cols;
  Method method;
  double cost;      // orthogonalize_cost
  int32_t owner;    // rank
  int32_t replica;  // the owner's replica of the layout; -1 until it is chosen
  int32_t chunk;
  int32_t grad_replica = 0;  // of the gradient's layout: the one that is gathered
};

/// Part `index` of `count` of what every rank holds of an AdamW parameter. The ranks that hold
/// equal elements own a slice of it each.
struct Segment {
  int32_t param;
  int32_t index, count;
};

struct ChunkSpec {
  ChunkKind kind = ChunkKind::kDirections;
  DType gather_dtype = DType::kBF16, return_dtype = DType::kBF16;
  std::vector<int32_t> matrices;  // ascending ids
  std::vector<Segment> segments;  // kSlices: of parameters that lie over the same mesh dims
  int64_t bytes = 0;  // of the whole matrices, dtype of the gather (sums: f32); of the segments
  int32_t callback_param = -1;  // the one parameter in it, where the caller's functions carry it
  int32_t relay = 0;  // replicas of a block, where the return takes two levels (relay.hpp)
};

/// Bytes a rank needs, by kind; stated before it is taken.
struct MemoryPlan {
  int64_t message_bytes = 0;  // send and receive buffers of the window
  int64_t staged_bytes = 0;   // returned updates and summed gradients that wait for the vote
  int64_t state_bytes = 0;    // momentum, AdamW moments, NorMuon's with owners, owned masters
};

/// Momentum of an element, and its second moment with AdamW, in f32.
inline int64_t moment_bytes(const ParamSpec& spec) {
  return spec.momentum_bytes + (spec.role == Role::kAdamW ? 4 : 0);
}
/// What lies with each local element.
inline int64_t local_state_bytes(const ParamSpec& spec) {
  return spec.weight_bytes + (owner_assembles_gradient(spec) ? 0 : moment_bytes(spec));
}

/// Who owns which matrix, in which chunk slot it travels. Immutable; equal on every rank.
class Plan {
 public:
  /// A pure function of the problem; a parameter's owner and slot do not depend on its place in the
  /// list. A parameter with no elements has no matrices.
  /// Errors: INVALID_ARGUMENT for options out of range, names that are missing or occur twice, a
  /// mesh with ranks outside the world, a Muon parameter that is no matrix nor stack, a scale that
  /// is not finite, an owner that is no holder.
  explicit Plan(Problem problem);

  const Problem& problem() const { return problem_; }
  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<ChunkSpec>& chunks() const { return chunks_; }

  /// Who holds what; shared by everything that derives copy lists.
  const HolderTable& holders() const { return holders_; }

  /// What `rank` does in every slot, in world order; slots in which it takes no part are left out.
  /// Messages begin at 64-byte boundaries of their buffers, whose sizes are multiples of 64.
  /// Errors: INVALID_ARGUMENT for a rank outside the world.
  std::vector<RankChunk> rank_chunks(int rank) const;

  /// Load of the busiest rank, and the best lower bound known for it, in FLOPs.
  double makespan() const { return makespan_; }
  double lower_bound() const { return lower_bound_; }
  const std::vector<double>& load() const { return load_; }  // per rank

  /// Whether each replica orthogonalizes for itself: matrices() then has one entry for each.
  bool each_replica() const { return each_; }
  /// Seconds of a step by the cost model (cost.hpp) either way; zero unless it had to choose. In
  /// every replica: of the products alone, dealt evenly, where those take longer than once.
  double once_seconds() const { return once_seconds_; }
  double each_seconds() const { return each_seconds_; }

  /// For a person: owners, slots, bytes, balance; at most `max_rows` rows of each table (0: all).
  /// @param scratch  bytes of each rank (pipeline/batches); empty: not said.
  /// @param checks   the same of what first steps check with (optimizer/first_check).
  std::string describe(int64_t max_rows = 0, std::span<const int64_t> scratch = {},
                       std::span<const int64_t> checks = {}) const;
  /// The same facts, every row, for a program; the second as members of an open object.
  std::string json(std::span<const int64_t> scratch = {},
                   std::span<const int64_t> checks = {}) const;
  void write(JsonWriter& json, std::span<const int64_t> scratch = {},
             std::span<const int64_t> checks = {}) const;
  /// Digest of the problem (names, options, layouts) and of what was decided.
  uint64_t hash() const;

 private:
  void choose_replicas();
  double seconds_in_every_replica() const;
  void add_matrices();
  void choose_owners(const std::vector<int32_t>& by_name);
  void assign_chunks(const std::vector<int32_t>& by_name, const std::vector<int32_t>& params);
  void add_matrix_chunks(const ChunkSpec& proto, const std::vector<int32_t>& by_name);
  void add_callback_chunks(const ChunkSpec& proto, std::vector<int32_t> ids);
  void add_segment_chunks(const ChunkSpec& proto, const std::vector<int32_t>& params_by_name);

  Problem problem_;
  HolderTable holders_;
  std::vector<Matrix> matrices_;
  std::vector<ChunkSpec> chunks_;
  std::vector<double> load_;
  double makespan_ = 0, lower_bound_ = 0;
  bool each_ = false;
  double once_seconds_ = 0, each_seconds_ = 0;
};

}  // namespace muonrt
