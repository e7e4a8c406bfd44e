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
struct PlanReport;

/// One matrix that is orthogonalized: a 2-D parameter, one expert of a stack, or a part of either.
struct Matrix {
  int32_t param;
  int64_t index;  // index in the parameter; 0 for a 2-D parameter without parts
  int64_t rows, cols;
  Method method;
  double cost;      // result of orthogonalize_cost()
  int32_t owner;    // rank of the owner
  int32_t replica;  // replica of the layout to which the owner belongs; -1 if not chosen yet
  int32_t chunk;
  int32_t grad_replica = 0;  // replica of the gradient's layout that is gathered
};

/// A segment of an AdamW parameter. The local elements of every rank are divided into `count`
/// segments, of which this one has the number `index`. Each of the ranks that hold equal elements
/// owns one slice of the segment.
struct Segment {
  int32_t param;
  int32_t index, count;
};

/// One chunk of the plan. It is equal on every rank.
struct ChunkSpec {
  ChunkKind kind = ChunkKind::kDirections;
  DType gather_dtype = DType::kBF16, return_dtype = DType::kBF16;
  std::vector<int32_t> matrices;  // ids in ascending order
  /// For kSlices, segments of parameters over the same mesh dims; otherwise empty.
  std::vector<Segment> segments;
  /// Size of the whole matrices in the gather dtype (f32 for sums of partial gradients), or size of
  /// the segments in f32.
  int64_t bytes = 0;
  bool by_callback = false;  // true if the caller's functions transfer the matrices
  int32_t update_every = 1;  // ParamSpec::update_every, equal for all parameters of the chunk
  /// Number of replicas in a block (relay.hpp) if the return has two levels; otherwise 0.
  int32_t relay = 0;
};

/// The bytes that a rank will allocate, by kind of memory.
struct MemoryPlan {
  int64_t message_bytes = 0;  // send and receive buffers of the chunks in flight
  int64_t staged_bytes = 0;   // returned updates and summed gradients that are kept until the vote
  int64_t state_bytes = 0;    // momentum, AdamW moments, owners' NorMuon moments, owned masters
};

/// Returns the bytes of the moments of one element: the momentum and, for AdamW, the second moment
/// in f32.
inline int64_t moment_bytes(const ParamSpec& spec) {
  return spec.momentum_bytes + (spec.role == Role::kAdamW ? 4 : 0);
}
/// Returns the bytes of state that a rank stores for each local element of a parameter.
inline int64_t local_state_bytes(const ParamSpec& spec) {
  return spec.weight_bytes + (owner_assembles_gradient(spec) ? 0 : moment_bytes(spec));
}

/// Determines the owner and the chunk of every matrix. Immutable, and equal on every rank.
class Plan {
 public:
  /// Creates the plan, which depends only on `problem`. The owner and the chunk of a parameter do
  /// not depend on its index in the list of parameters. A parameter without elements has no
  /// matrices.
  /// Errors: INVALID_ARGUMENT if
  /// * an option is out of range, a name is missing or occurs twice, or a scale is not finite;
  /// * a mesh contains ranks outside the world, or a given owner is not a holder;
  /// * a Muon parameter is neither a matrix nor a stack.
  explicit Plan(Problem problem);

  const Problem& problem() const { return problem_; }
  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<ChunkSpec>& chunks() const { return chunks_; }

  /// Returns the holders of all matrices.
  const HolderTable& holders() const { return holders_; }

  /// Returns the rank chunks of `rank`, in the order of the chunks. Omits chunks in which the rank
  /// does not take part. Offsets of messages in their buffers, and sizes of buffers, are multiples
  /// of 64 bytes.
  /// Errors: INVALID_ARGUMENT if `rank` is outside the world.
  std::vector<RankChunk> rank_chunks(int rank) const;

  /// makespan() returns the load of the busiest rank, and lower_bound() the best known lower bound
  /// on that load. Both are costs.
  double makespan() const { return makespan_; }
  double lower_bound() const { return lower_bound_; }
  const std::vector<double>& load() const { return load_; }  // cost for each rank

  /// each_replica() returns true if each replica, or every rank, orthogonalizes its own matrices.
  /// matrices() then has a separate entry for each of them.
  bool each_replica() const { return each_; }
  bool every_rank() const { return problem_.options.replica_mode == ReplicaMode::kEveryRank; }
  /// If the replica mode is kAuto, once_seconds() and each_seconds() return the step times in
  /// seconds that the cost model (owners/cost.hpp) predicts for kOnce and kEach; otherwise they
  /// return 0. If the products, evenly distributed with kEach, already take longer than a whole
  /// step with kOnce, each_seconds() returns only the time of the products.
  double once_seconds() const { return once_seconds_; }
  double each_seconds() const { return each_seconds_; }

  /// Returns text that describes owners, chunks, bytes and balance.
  /// @param max_rows  Maximum number of rows in each table; 0 means all rows.
  /// @param scratch   Scratch bytes of each rank (pipeline/batches); empty if unknown.
  /// @param checks    Bytes that each rank needs for the consistency check
  ///     (optimizer/consistency_check); empty if unknown.
  std::string describe(int64_t max_rows = 0, std::span<const int64_t> scratch = {},
                       std::span<const int64_t> checks = {}) const;
  /// Returns these facts in JSON format, with all rows.
  std::string json(std::span<const int64_t> scratch = {},
                   std::span<const int64_t> checks = {}) const;
  /// Returns the same text as the other overload, from an existing report (report/report.hpp).
  std::string describe(const PlanReport& report, int64_t max_rows) const;
  void write(JsonWriter& json, const PlanReport& report) const;
  /// Returns a hash of the problem (names, options, layouts) and of all decisions.
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
