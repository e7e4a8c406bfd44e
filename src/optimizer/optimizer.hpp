#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "base/function_ref.hpp"
#include "optimizer/commit_state.hpp"
#include "optimizer/consistency_check.hpp"
#include "optimizer/first_update.hpp"
#include "optimizer/methods/qk_clip.hpp"
#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/methods/written_memory.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "optimizer/step_pipelines.hpp"
#include "optimizer/step_report.hpp"

namespace muonrt {

/// Upper limit of the step number and of update counts.
constexpr int64_t kMaxStepCount = int64_t{1} << 53;

/// A step between Optimizer::step_async and Optimizer::wait. The work of the step may read `args`
/// and `inputs`.
struct StepInFlight {
  StepArgs args;
  StepInputs inputs;
  std::optional<Error> own_error;  // an invalid argument of this rank
  Deadline::Clock::time_point start;
  int64_t bytes_before = 0;    // sent by this rank before the step
  bool is_async = false;       // the caller continues before the step has ended
  std::optional<Status> done;  // set: the step is complete, and only its report is still unread
  StepReport report;
};

/// Owns the parameters, their state and the step of one rank. One thread at a time may use it.
class Optimizer {
 public:
  using MakeDevice = std::function<std::unique_ptr<Device>(const OptimizerSettings&)>;

  /// Creates the optimizer of this rank. Collective. If the creation fails on any rank, all ranks
  /// throw the same error.
  /// @param read_settings  returns this rank's settings and may throw. It runs inside
  ///     run_collectively, so an error of it is returned by every rank.
  static std::unique_ptr<Optimizer> create(Comm& comm,
                                           FunctionRef<OptimizerSettings()> read_settings,
                                           const MakeDevice& make_device);

  /// Waits for the work of a step in flight, but does not report its result.
  ~Optimizer();

  /// Runs one step. Collective.
  /// @param read_args  returns this rank's arguments and may throw. The step is then rejected on
  ///     all ranks.
  /// @return  OK or SKIPPED. Errors: as muonrt_optimizer_step().
  Status step(FunctionRef<StepArgs()> read_args, StepReport& report);
  /// Enqueues one step. If another step is in flight, completes it first. Collective.
  /// Errors: as muonrt_optimizer_step_async().
  void step_async(FunctionRef<StepArgs()> read_args);
  /// Completes the step in flight. Collective.
  /// @return  OK or SKIPPED. Errors: as muonrt_optimizer_wait().
  Status wait(StepReport& report);
  /// Completes the step in flight, if there is one. Collective. Errors: those of the step.
  void settle();
  /// Errors: INVALID_STATE, which names `function`, if a step is in flight.
  void require_idle(const char* function) const;

  /// Call it on the surviving ranks after a step has failed. If one of them has committed the step,
  /// the others commit it, too. Collective over the survivors.
  /// Errors: as muonrt_optimizer_recover().
  Recovery recover(Comm& survivors, SurvivorPolicy policy = SurvivorPolicy::kMajority);

  /// Errors: INVALID_ARGUMENT for an invalid index, and for a gradient that is misaligned, overlaps
  /// memory that steps write, or is not in memory that the device reaches.
  void check_grad(int64_t param, const void* grad) const;
  void set_grad(int64_t param, const void* grad);
  /// Errors: as muonrt_optimizer_set_data() and muonrt_optimizer_reset_masters().
  void set_data(int64_t param, void* data);
  void reset_masters(const std::vector<int64_t>& params);
  void set_group(int32_t index, const GroupSettings& group);
  StateView state(int64_t param, StateKind kind) const;
  int64_t find(const std::string& name) const;
  int64_t steps() const { return commit_state_.steps(); }
  /// The heads that QK-clip has clipped in the last committed step.
  const QkClipper::Heads& clipped_heads() const { return qk_clipper_.clipped(); }
  std::vector<QkLogits> qk_layers() const { return muonrt::qk_layers(settings_); }
  void set_steps(int64_t steps);
  int64_t updates(int64_t param) const;
  void set_updates(int64_t param, int64_t updates);
  const std::vector<StateEntry>& state_entries() const { return state_.entries(); }
  /// What stochastic rounding depends on apart from the step and the element.
  RandomKeys random_keys() const { return param_tables_.random_keys(); }
  /// Continues from loaded state. The arguments must be equal on all ranks.
  void resume(int64_t steps, const std::vector<int64_t>& updates, const RandomKeys& keys);
  /// Errors: INVALID_STATE if an earlier call has ended the optimizer.
  void require_usable() const { commit_state_.require_usable(); }
  /// Errors: TORN if a step has partly changed parameters or state. @param what  for the error.
  void require_whole(const char* what) const { commit_state_.require_whole(what); }
  /// A random number, equal on all ranks of this optimizer.
  uint64_t identity() const { return commit_state_.identity(); }
  /// Ends the optimizer. Later calls return INVALID_STATE with this error in their text.
  void set_fatal_error(const Error& error) { commit_state_.set_fatal_error(error); }
  const HealthReport& health() const { return pipelines_.health(); }

  const Plan& plan() const { return pipelines_.full_plan(); }
  /// The plan of block steps; null if no group has a block period.
  const Plan* block_plan() const { return pipelines_.block_plan(); }
  /// Describes the plan, and the plan of block steps if there is one, as text or JSON.
  std::string describe(bool json) const;
  /// The bytes of this rank that `describe` prints, except those of the checks.
  PlannedMemory planned_memory() const;
  /// The bytes of this rank for the consistency check that `describe` prints.
  int64_t check_bytes() const;
  /// The pipeline of the last step.
  const Pipeline& pipeline() const { return pipelines_.pipeline(); }
  const Device& device() const { return *device_; }
  Device& device() { return *device_; }
  const Comm& comm() const { return *comm_; }
  Comm& comm() { return *comm_; }
  const OptimizerSettings& settings() const { return settings_; }
  int rank() const { return comm_->rank(); }
  int64_t orthogonalized() const { return pipelines_.orthogonalized(); }

  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

 private:
  Optimizer() = default;
  void allocate_memory();
  void begin_step(FunctionRef<StepArgs()> read_args, bool is_async);
  Status finish_step();
  void read_inputs(FunctionRef<StepArgs()> read_args);
  void enqueue();
  void wait_for_streams();
  void add_first_weights(bool valid);
  std::optional<Error> stale_weights();
  std::optional<Error> apply_vote_result();
  void finish_commit();
  [[noreturn]] void abort_and_throw(const Error& error);
  void collect_health(StepReport& report);

  OptimizerSettings settings_;
  std::unique_ptr<Device> device_;
  State state_;
  ParamTables param_tables_;
  QkClipper qk_clipper_;
  WrittenMemory written_memory_;
  ConsistencyCheck consistency_check_;
  FirstUpdate first_update_;
  // The destructor ends the streams of the pipelines before the communicator that their tasks use,
  // and both before the memory above.
  std::unique_ptr<Comm> comm_;
  StepPipelines pipelines_;
  CommitState commit_state_;
  StepInFlight step_;  // the last step
  bool in_flight_ = false;
};

}  // namespace muonrt
