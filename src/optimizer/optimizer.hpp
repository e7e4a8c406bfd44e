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
#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/methods/written_memory.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "optimizer/step_pipelines.hpp"
#include "optimizer/step_report.hpp"

namespace muonrt {

/// Of committed steps, and of a parameter's updates.
constexpr int64_t kMaxStepCount = int64_t{1} << 53;

/// Parameters, their state, the step. One per rank; used by one thread at a time.
class Optimizer {
 public:
  using MakeDevice = std::function<std::unique_ptr<Device>(const OptimizerSettings&)>;

  /// Collective: `read` gives this rank's settings; whatever fails on any rank fails with the same
  /// error on all, before anything is changed.
  static std::unique_ptr<Optimizer> create(Comm& comm, FunctionRef<OptimizerSettings()> read,
                                           const MakeDevice& make_device);

  /// Collective. `read` gives this rank's arguments and may throw: the step is then voted down.
  /// @return  OK or SKIPPED. Errors: as muonrt_optimizer_step.
  Status step(FunctionRef<StepArgs()> read, StepReport& report);

  /// After a step that failed: commits it here where any of the survivors has, else nowhere.
  /// Collective over them. Errors: as muonrt_optimizer_recover.
  Recovery recover(Comm& survivors, SurvivorPolicy policy = SurvivorPolicy::kMajority);

  /// Errors: INVALID_ARGUMENT for a bad index, a misaligned gradient, one that overlaps what a
  /// parameter's step writes.
  void check_grad(int64_t param, const void* grad) const;
  void set_grad(int64_t param, const void* grad);
  /// Errors: as muonrt_optimizer_set_data and _take_params.
  void set_data(int64_t param, void* data);
  void reset_masters(const std::vector<int64_t>& list);
  void set_group(int32_t index, const GroupSettings& group);
  StateView state(int64_t param, StateKind kind) const;
  int64_t find(const std::string& name) const;
  int64_t steps() const { return commit_state_.steps(); }
  /// (layer, head) that QK-clip acted on in the last committed step.
  const QkClipper::Heads& clipped_heads() const { return qk_clipper_.clipped(); }
  void set_steps(int64_t steps);
  int64_t updates(int64_t param) const;
  void set_updates(int64_t param, int64_t updates);
  const std::vector<StateEntry>& state_entries() const { return state_.entries(); }
  /// What random rounding follows from, besides the step.
  RandomKeys random_keys() const { return param_tables_.random_keys(); }
  /// State was written: goes on from there. The same on every rank.
  void resume(int64_t steps, const std::vector<int64_t>& updates, const RandomKeys& keys);
  /// Errors: INVALID_STATE where an earlier call has ended it.
  void require_usable() const { commit_state_.require_usable(); }
  /// It can be used no longer; every later call says why.
  void set_fatal_error(const Error& error) { commit_state_.set_fatal_error(error); }
  const HealthReport& health() const { return pipelines_.health(); }

  const Plan& plan() const { return pipelines_.full_plan(); }
  /// Of block steps; null where there are none.
  const Plan* block_plan() const { return pipelines_.block_plan(); }
  /// The plan, and that of block steps; text or JSON.
  std::string describe(bool json) const;
  /// Of the last step.
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
  StepInputs read_inputs(FunctionRef<StepArgs()> read, StepArgs& step, std::optional<Error>& mine);
  void enqueue(const StepInputs& run);
  void wait();
  std::optional<Error> apply_vote_result(const StepArgs& step, const std::optional<Error>& mine,
                                         StepReport& report);
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
  // Streams go before the communicator that their tasks use, and both before the memory above.
  std::unique_ptr<Comm> comm_;
  StepPipelines pipelines_;
  CommitState commit_state_;
};

}  // namespace muonrt
