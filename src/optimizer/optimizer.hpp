#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "optimizer/intervals.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "optimizer/verdict.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// What a step did on this rank.
struct StepReport {
  bool skipped = false;
  int64_t step = 0;                                            // committed steps so far
  int64_t orthogonalized = 0, planned = 0, zero_matrices = 0;  // summed over ranks
  int32_t nonfinite_rank = -1;
  int64_t nonfinite_param = -1;
  int64_t bytes_sent = 0;
  double seconds = 0, local_seconds = 0, product_seconds = 0, exchange_seconds = 0;
  double exposed_seconds = 0, enqueue_seconds = 0;
  double grad_norm = 0;
  int64_t clipped_heads = 0;
  bool health = false;  // measured in this step
};

/// What the last step that measured found.
struct HealthReport {
  int64_t step = -1;  // committed steps then; -1: none has measured yet
  bool skipped = false;
  std::vector<MatrixHealth> matrices;
  ReplicaDifference difference;
};

/// Of a step: it was voted down, nothing has changed, and the optimizer can go on.
constexpr bool leaves_usable(Status status) {
  return status == Status::kInvalidArgument || status == Status::kMismatch ||
         status == Status::kCallback;
}

/// What the ranks that are left have settled.
struct Recovery {
  enum class Outcome : int32_t { kNothing = 0, kForward = 1, kDiscarded = 2 };
  Outcome outcome = Outcome::kNothing;
  int64_t steps = 0;  // committed, on each of them
};

struct Standing;

/// Parameters, their state, the step. One per rank; used by one thread at a time.
class Optimizer {
 public:
  using MakeDevice = std::function<std::unique_ptr<Device>(const OptimizerSettings&)>;

  /// Collective: `read` gives this rank's settings; whatever fails on any rank fails with the same
  /// error on all, before anything is changed.
  static std::unique_ptr<Optimizer> create(Comm& comm,
                                           const std::function<OptimizerSettings()>& read,
                                           const MakeDevice& make_device);
  ~Optimizer();

  /// Collective. `read` gives this rank's arguments and may throw: the step is then voted down.
  /// @return  OK or SKIPPED. Errors: as muonrt_optimizer_step.
  Status step(const std::function<StepSettings()>& read, StepReport& report);

  /// After a step that failed: commits it here where any of the survivors has, else nowhere.
  /// Collective over them. Errors: as muonrt_optimizer_recover.
  Recovery recover(Comm& survivors);

  /// Errors: INVALID_ARGUMENT for a bad index, a misaligned gradient, one that overlaps what a
  /// parameter's step writes.
  void check_grad(int64_t param, const void* grad) const;
  void set_grad(int64_t param, const void* grad);
  void set_group(int32_t index, const GroupSettings& group);
  StateView state(int64_t param, StateKind kind) const;
  std::vector<StatePiece> state_pieces(int64_t param, StateKind kind) const;
  int64_t find(const std::string& name) const;
  int64_t steps() const { return steps_; }
  /// (layer, head) that QK-clip acted on in the last committed step.
  const std::vector<std::pair<int32_t, int32_t>>& clipped_heads() const { return clipped_; }
  void set_steps(int64_t steps);
  const HealthReport& health() const { return health_; }

  const Plan& plan() const { return *plan_; }
  /// Of block steps; null where there are none.
  const Plan* block_plan() const { return block_plan_.get(); }
  /// The plan, and that of block steps; text or JSON.
  std::string describe(bool json) const;
  /// Of the last step.
  const Pipeline& pipeline() const { return *current_; }
  const Device& device() const { return *device_; }
  const Comm& comm() const { return *comm_; }
  const OptimizerSettings& settings() const { return settings_; }
  int rank() const { return comm_->rank(); }
  int64_t orthogonalized() const { return orthogonalized_; }

  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

 private:
  Optimizer() = default;
  void take_memory();
  void take_tables(int64_t views);
  Context make_context(int64_t views);
  void list_written();
  /// Whether the coming step takes blocks in place of whole matrices.
  bool in_blocks() const;
  /// Whether it takes the health statistics.
  bool measures() const;
  void fill_view(int32_t param);
  void take_kept(const std::vector<SlotPlan>& slots);
  void bind_sums();
  void follow_params();
  bool sums(int64_t param) const;
  void rehearse();
  void require_reach(int64_t param, const char* what, const void* memory) const;
  std::vector<Piece> adamw_pieces(int32_t param) const;
  GuardWork make_guards();
  void check_device_scalars(const StepSettings& step) const;
  void agree_on_steps();
  void apply(const StepSettings& step);
  void fill_scalars(const StepSettings& step);
  int64_t stamp(const StepSettings& step) const;
  void require_usable() const;
  std::optional<Error> prepare(const std::function<StepSettings()>& read, StepSettings& step);
  void enqueue(const StepRun& run);
  void wait();
  void conclude(const StepSettings& step, const std::optional<Error>& mine, StepReport& report);
  /// Of a function of the caller's, in this step.
  std::optional<Error> function_error() const;
  [[noreturn]] void fail(const Error& error);
  static Error as_end(const Error& error);
  Standing standing() const;
  [[noreturn]] void explain_rejection(const std::optional<Error>& mine, const StepSettings& step);
  void explain_skip(StepReport& report);
  void take_health(StepReport& report);
  Findings findings() const;
  std::optional<Error> cause_of(std::optional<Error> error) const;
  /// Without what errors of streams and the communicator say.
  StepEnd step_end() const;
  void finish(const StepEnd& end, StepReport& report);
  void count_commit();
  void measure(StepReport& report, double seconds) const;
  void check_param(int64_t param, const char* where = "") const;
  const GroupSettings& group_of(int64_t param) const;

  OptimizerSettings settings_;
  std::unique_ptr<Comm> comm_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Plan> plan_, block_plan_;
  FunctionFailure function_failure_;
  std::vector<NewtonSchulz> newton_schulz_;  // by group
  State state_;
  Buffer row_factors_, selections_;  // of QK-clip
  Buffer tables_;                    // written by the host
  Buffer device_tables_;             // what the device reads, where it is not the same
  ParamView* params_ = nullptr;      // in tables_
  MuonScalars* muon_ = nullptr;      // by group
  AdamScalars* adam_ = nullptr;      // by parameter
  std::vector<int64_t> adam_steps_;  // by parameter: updates so far
  std::vector<Kept> kept_;           // by place in the table behind the parameters
  std::vector<Interval> written_;    // by steps
  std::unique_ptr<Pipeline> pipeline_, block_pipeline_;
  const Plan* current_plan_ = nullptr;  // of the step in progress, or the last
  Pipeline* current_ = nullptr;
  std::vector<std::pair<int32_t, int32_t>> clipped_;
  int64_t logits_ = 0;  // of all layers
  HealthReport health_;
  int64_t steps_ = 0, orthogonalized_ = 0, bytes_before_ = 0, last_stamp_ = 0;
  Ballot passed_;             // the vote of the last committed step,
  int64_t passed_stamp_ = 0;  // and its stamp
  uint64_t identity_ = 0;     // of all ranks of this optimizer
  bool open_ = false;         // a step has failed inside its vote
  bool torn_ = false;         // behind it
  bool settled_ = false;      // and the ranks have agreed what becomes of it
  std::optional<Error> poison_;
};

}  // namespace muonrt
