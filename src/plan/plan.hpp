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

/// Part `index` of `count` of the local elements of an AdamW parameter on every rank. Each of the
/// ranks that hold equal elements owns one slice of it.
struct Segment {
  int32_t param;
  int32_t index, count;
};

/// One chunk of the plan; equal on every rank.
struct ChunkSpec {
  ChunkKind kind = ChunkKind::kDirections;
  DType gather_dtype = DType::kBF16, return_dtype = DType::kBF16;
  std::vector<int32_t> matrices;  // ascending ids
  std::vector<Segment> segments;  // kSlices: parameters over the same mesh dims
  int64_t bytes = 0;         // whole matrices in the gather dtype (sums: f32), or segments in f32
  bool by_callback = false;  // the caller's functions transfer the matrices
  int32_t update_every = 1;  // of all its parameters; in the other steps the chunk rests
  int32_t relay = 0;  // replicas in a block if the return takes two levels (relay.hpp), else 0
};

/// Bytes that a rank will allocate, by kind.
struct MemoryPlan {
  int64_t message_bytes = 0;  // send and receive buffers of the window
  int64_t staged_bytes = 0;   // returned updates and summed gradients until the vote
  int64_t state_bytes = 0;    // momentum, AdamW moments, NorMuon's moments at owners, owned masters
};

/// Returns the bytes of the momentum of one element, plus its second moment (AdamW, f32).
inline int64_t moment_bytes(const ParamSpec& spec) {
  return spec.momentum_bytes + (spec.role == Role::kAdamW ? 4 : 0);
}
/// Returns the bytes of state that a rank stores for each local element.
inline int64_t local_state_bytes(const ParamSpec& spec) {
  return spec.weight_bytes + (owner_assembles_gradient(spec) ? 0 : moment_bytes(spec));
}

/// The owner and the chunk of every matrix. Immutable; equal on every rank.
class Plan {
 public:
  /// A pure function of the problem. The owner and the chunk of a parameter do not depend on its
  /// index in the list. A parameter without elements has no matrices.
  /// Errors: INVALID_ARGUMENT for options out of range, names that are missing or occur twice, a
  /// mesh with ranks outside the world, a Muon parameter that is neither a matrix nor a stack, a
  /// scale that is not finite, an owner that is not a holder.
  explicit Plan(Problem problem);

  const Problem& problem() const { return problem_; }
  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<ChunkSpec>& chunks() const { return chunks_; }

  /// The holders of all matrices.
  const HolderTable& holders() const { return holders_; }

  /// Returns the rank chunks of `rank` in the order of the chunks, without those in which it does
  /// not take part. Messages start at multiples of 64 bytes in their buffers, and the sizes of the
  /// buffers are multiples of 64 bytes.
  /// Errors: INVALID_ARGUMENT for a rank outside the world.
  std::vector<RankChunk> rank_chunks(int rank) const;

  /// The load of the busiest rank and the best known lower bound for it, as cost.
  double makespan() const { return makespan_; }
  double lower_bound() const { return lower_bound_; }
  const std::vector<double>& load() const { return load_; }  // per rank

  /// True if each replica or every rank orthogonalizes its matrices; matrices() then has an entry
  /// for each of them.
  bool each_replica() const { return each_; }
  bool every_rank() const { return problem_.options.replica_mode == ReplicaMode::kEveryRank; }
  /// Seconds of a step by the cost model (owners/cost.hpp) for both replica modes; 0 unless the
  /// mode is kAuto. If the products alone, evenly distributed, take longer in every replica than a
  /// step with kOnce, each_seconds() is the time of these products.
  double once_seconds() const { return once_seconds_; }
  double each_seconds() const { return each_seconds_; }

  /// Returns the plan as text: owners, chunks, bytes, balance.
  /// @param max_rows  maximum number of rows of each table; 0: all.
  /// @param scratch   scratch bytes of each rank (pipeline/batches); empty: unknown.
  /// @param checks    bytes of each rank for the consistency check (optimizer/consistency_check);
  ///     empty: unknown.
  std::string describe(int64_t max_rows = 0, std::span<const int64_t> scratch = {},
                       std::span<const int64_t> checks = {}) const;
  /// Returns the same facts as JSON, with all rows.
  std::string json(std::span<const int64_t> scratch = {},
                   std::span<const int64_t> checks = {}) const;
  /// The same from a report on this plan (report/report.hpp).
  std::string describe(const PlanReport& report, int64_t max_rows) const;
  void write(JsonWriter& json, const PlanReport& report) const;
  /// Hash of the problem (names, options, layouts) and of all decisions.
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
