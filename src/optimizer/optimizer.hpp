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

/// The maximum step number, and the maximum update count of a parameter.
constexpr int64_t kMaxStepCount = int64_t{1} << 53;

/// A step between Optimizer::step_async() and Optimizer::wait(). Enqueued work of the step may read
/// `args` and `inputs`.
struct StepInFlight {
  StepArgs args;
  StepInputs inputs;
  std::optional<Error> own_error;  // an invalid argument of this rank
  Deadline::Clock::time_point start;
  int64_t bytes_before = 0;  // bytes that this rank had sent before the step
  bool is_async = false;     // true if the caller continues before the step is complete
  /// Set if the step is complete but its report has not been read yet.
  std::optional<Status> done;
  StepReport report;
};

/// Holds the parameters and state of one rank and runs its steps. Only one thread at a time may use
/// it.
class Optimizer {
 public:
  using MakeDevice = std::function<std::unique_ptr<Device>(const OptimizerSettings&)>;

  /// Creates the optimizer of this rank. Collective. If creation fails on any rank, all ranks throw
  /// the same error.
  /// @param read_settings  Returns the settings of this rank. If it throws, every rank throws that
  ///     error.
  static std::unique_ptr<Optimizer> create(Comm& comm,
                                           FunctionRef<OptimizerSettings()> read_settings,
                                           const MakeDevice& make_device);

  /// Waits for the work of a step in flight. Does not report the result of that step.
  ~Optimizer();

  /// Runs one step. Collective.
  /// @param read_args  Returns the arguments of this rank. If it throws, all ranks reject the step.
  /// @return  OK or SKIPPED. Errors: the same as muonrt_optimizer_step().
  Status step(FunctionRef<StepArgs()> read_args, StepReport& report);
  /// Enqueues one step. If another step is in flight, completes that step first. Collective.
  /// Errors: the same as muonrt_optimizer_step_async().
  void step_async(FunctionRef<StepArgs()> read_args);
  /// Completes the step in flight. Collective.
  /// @return  OK or SKIPPED. Errors: the same as muonrt_optimizer_wait().
  Status wait(StepReport& report);
  /// Completes the step in flight, if there is one. Collective. Errors: any error of the step.
  void settle();
  /// Checks that no step is in flight. Errors: INVALID_STATE, with `function` in the message.
  void require_idle(const char* function) const;

  /// Brings the surviving ranks to the same step after a step has failed. If one of them has
  /// committed the step, the others also commit it. Collective over the survivors.
  /// Errors: the same as muonrt_optimizer_recover().
  Recovery recover(Comm& survivors, SurvivorPolicy policy = SurvivorPolicy::kMajority);

  /// Checks a gradient. Errors: INVALID_ARGUMENT if the index is invalid, or if the gradient is
  /// misaligned, overlaps memory that steps write, or is in memory that the device cannot access.
  void check_grad(int64_t param, const void* grad) const;
  void set_grad(int64_t param, const void* grad);
  /// The next two functions implement muonrt_optimizer_set_data() and
  /// muonrt_optimizer_reset_masters(), with the same errors.
  void set_data(int64_t param, void* data);
  void reset_masters(const std::vector<int64_t>& params);
  void set_group(int32_t index, const GroupSettings& group);
  StateView state(int64_t param, StateKind kind) const;
  int64_t find(const std::string& name) const;
  int64_t steps() const { return commit_state_.steps(); }
  /// Returns the heads that QK-clip clipped in the last committed step.
  const QkClipper::Heads& clipped_heads() const { return qk_clipper_.clipped(); }
  std::vector<QkLogits> qk_layers() const { return muonrt::qk_layers(settings_); }
  void set_steps(int64_t steps);
  int64_t updates(int64_t param) const;
  void set_updates(int64_t param, int64_t updates);
  const std::vector<StateEntry>& state_entries() const { return state_.entries(); }
  /// Returns the values that stochastic rounding depends on, except the step and the element.
  RandomKeys random_keys() const { return param_tables_.random_keys(); }
  /// Continues from loaded state. The arguments must be equal on all ranks.
  void resume(int64_t steps, const std::vector<int64_t>& updates, const RandomKeys& keys);
  /// Checks that no earlier call has made the optimizer unusable. Errors: INVALID_STATE.
  void require_usable() const { commit_state_.require_usable(); }
  /// Checks that no failed step has changed only some of the parameters and state. Errors: TORN.
  /// @param what  Name of the operation in the error message.
  void require_whole(const char* what) const { commit_state_.require_whole(what); }
  /// Returns a random number that is equal on all ranks of this optimizer.
  uint64_t identity() const { return commit_state_.identity(); }
  /// Makes the optimizer unusable. Later calls return INVALID_STATE, with this error in the
  /// message.
  void set_fatal_error(const Error& error) { commit_state_.set_fatal_error(error); }
  const HealthReport& health() const { return pipelines_.health(); }

  const Plan& plan() const { return pipelines_.full_plan(); }
  /// Returns the plan of block steps, or null if no group has a block period.
  const Plan* block_plan() const { return pipelines_.block_plan(); }
  /// Describes the plan as text or JSON. Includes the plan of block steps if there is one.
  std::string describe(bool json) const;
  /// Returns the memory sizes of this rank that describe() prints, except the memory for the
  /// consistency check.
  PlannedMemory planned_memory() const;
  /// Returns the bytes that this rank allocates for the consistency check, as describe() prints
  /// them.
  int64_t check_bytes() const;
  /// Returns the pipeline of the last step.
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
  // Members are destroyed in reverse order. The pipelines come after the communicator, because
  // tasks of their streams use it. Both come after the memory above, because they use it.
  std::unique_ptr<Comm> comm_;
  StepPipelines pipelines_;
  CommitState commit_state_;
  StepInFlight step_;  // the last step
  bool in_flight_ = false;
};

}  // namespace muonrt
