#include "optimizer/optimizer.hpp"

#include "base/log.hpp"
#include "base/processors.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/pipeline_config.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/settings/describe.hpp"

namespace muonrt {

// Each local part of the creation runs inside run_collectively(), and also allocates the memory
// that the next collective needs. If a part fails on one rank, all ranks return the error before
// they enter the next collective.
std::unique_ptr<Optimizer> Optimizer::create(Comm& comm,
                                             FunctionRef<OptimizerSettings()> read_settings,
                                             const MakeDevice& make_device) {
  std::unique_ptr<Optimizer> out;
  AgreementTable table;
  std::vector<NewtonSchulz> methods;
  std::vector<Processors> processors;
  run_collectively(comm, [&] {
    out.reset(new Optimizer());
    processors.resize(static_cast<size_t>(comm.size()));
  });
  const Processors own = own_processors();
  run_or_abort(comm, [&] { comm.allgather(&own, processors.data(), sizeof own); });
  run_collectively(comm, [&] {
    Optimizer& self = *out;
    self.settings_ = read_settings();
    validate(self.settings_, comm.rank(), comm.size());
    assign_owners(self.settings_, comm.size());
    if (self.settings_.threads == 0) self.settings_.threads = threads_of(processors, comm.rank());
    self.settings_.reserved_sms = comm.occupied_sms();
    self.device_ = make_device(self.settings_);
    MUONRT_REQUIRE(comm.serves(*self.device_), Status::kNotSupported, "options: device is '",
                   self.device_->describe(), "', but the communicator (", comm.describe(),
                   ") works on host memory; use MUONRT_DEVICE_HOST, or a "
                   "communicator for that device");
    table = make_agreement_table(self.settings_, self.device_->describe());
    methods = make_newton_schulz(self.settings_);
    self.commit_state_ = CommitState(comm.rank(), comm.size(), self.settings_.commit);
  });
  Optimizer& self = *out;
  table.require_equal(comm);
  run_collectively(comm, [&] {
    self.pipelines_ = StepPipelines(self.settings_, std::move(methods), comm.size());
  });
  run_or_abort(comm, [&] { self.comm_ = comm.duplicate(); });
  self.comm_->set_timeout_ms(self.settings_.timeout_ms);
  self.commit_state_.agree_on_identity(*self.comm_);
  run_collectively(*self.comm_,
                   [&] { self.allocate_memory(), self.pipelines_.warm_up(*self.device_); });
  run_or_abort(*self.comm_, [&] { self.pipelines_.connect(*self.device_); });
  log(LogLevel::kInfo, [&] {
    const Plan& plan = self.plan();
    return cat("rank ", comm.rank(), ": optimizer created (", comm.size(), " ranks, ",
               self.settings_.params.size(), " parameters, ", plan.matrices().size(), " matrices, ",
               plan.chunks().size(), " chunks; ", human_bytes(self.device_->allocated_bytes()),
               " allocated on ", self.device_->describe(), "; ", self.comm_->describe(), ")");
  });
  return out;
}

Optimizer::~Optimizer() {
  if (in_flight_ && !step_.done) capture_error([&] { pipelines_.pipeline().wait(); });
}

// Creates the pipelines last, because they store addresses of the memory that is allocated before.
void Optimizer::allocate_memory() {
  std::vector<RankChunk> chunks = pipelines_.full_plan().rank_chunks(rank());
  state_ = State(*device_, settings_, pipelines_.full_plan(), chunks, rank());
  param_tables_ = ParamTables(*device_, settings_, state_, chunks, rank());
  state_.initialize(*device_, settings_);
  qk_clipper_ = QkClipper(*device_, settings_, param_tables_.params());
  param_tables_.allocate_device_copy(*device_);
  PipelineContext context;
  context.device = device_.get();
  context.comm = comm_.get();
  context.tables = param_tables_.on_device();
  pipelines_.create_pipelines(
      context, rank(), std::move(chunks),
      make_pipeline_config(settings_, param_tables_, state_, qk_clipper_, rank()));
  param_tables_.bind_sums(pipelines_.full_pipeline());
  written_memory_ = WrittenMemory(settings_, param_tables_.params(), state_);
  consistency_check_ =
      ConsistencyCheck(*device_, settings_, state_, pipelines_.full_plan(), rank(), comm_->size());
  first_update_ = FirstUpdate(pipelines_.full_plan(), comm_->size());
}

std::string Optimizer::describe(bool json) const {
  return pipelines_.describe(
      pipelines_.report(device_->ops(), settings_.health_every > 0,
                        consistency_check_bytes(pipelines_.full_plan(), settings_)),
      json);
}

PlannedMemory Optimizer::planned_memory() const {
  return pipelines_.memory(device_->ops(), settings_.health_every > 0, rank());
}

int64_t Optimizer::check_bytes() const {
  return consistency_check_bytes(pipelines_.full_plan(), settings_)[static_cast<size_t>(rank())];
}

void Optimizer::set_group(int32_t index, const GroupSettings& group) {
  const auto count = static_cast<int32_t>(settings_.groups.size());
  MUONRT_REQUIRE(index >= 0 && index < count, Status::kInvalidArgument, "group index is ", index,
                 ", but there are ", count, " groups; use an index below that");
  const std::string who = cat("group ", index, " '", settings_.groups[index].name, "'");
  validate(group, who);
  change(settings_.groups[static_cast<size_t>(index)], group, who);
}

int64_t Optimizer::find(const std::string& name) const {
  for (size_t i = 0; i < settings_.params.size(); ++i) {
    if (settings_.params[i].name == name) return static_cast<int64_t>(i);
  }
  throw Error(Status::kInvalidArgument,
              cat("there is no parameter called '", name, "'; use a registered name"));
}

void Optimizer::set_steps(int64_t steps) {
  MUONRT_REQUIRE(steps >= 0 && steps <= kMaxStepCount, Status::kInvalidArgument, "step is ", steps,
                 ", but must be between 0 and 2^53; use a number in that range");
  commit_state_.set_steps(steps);
  param_tables_.set_steps(settings_, steps);
  consistency_check_.schedule_all();
}

void Optimizer::resume(int64_t steps, const std::vector<int64_t>& updates, const RandomKeys& keys) {
  set_steps(steps);
  for (size_t i = 0; i < updates.size(); ++i)
    param_tables_.set_updates(static_cast<int64_t>(i), updates[i]);
  param_tables_.set_random_keys(keys);
}

int64_t Optimizer::updates(int64_t param) const {
  require_param(settings_, param);
  return param_tables_.updates(param);
}

void Optimizer::set_updates(int64_t param, int64_t updates) {
  require_param(settings_, param);
  MUONRT_REQUIRE(updates >= 0 && updates <= kMaxStepCount, Status::kInvalidArgument, "param '",
                 settings_.params[static_cast<size_t>(param)].name, "': updates is ", updates,
                 ", but must be between 0 and 2^53; use a number in that range");
  param_tables_.set_updates(param, updates);
  consistency_check_.schedule_all();
}

void Optimizer::check_grad(int64_t param, const void* grad) const {
  require_param(settings_, param);
  const ParamView& view = param_tables_.params()[param];
  const std::string& name = settings_.params[static_cast<size_t>(param)].name;
  const Interval given = interval_of(grad, view.grads(), view.grad_dtype, "grad", name);
  if (grad) written_memory_.require_apart_from(given);
  require_reach(*device_, name, "grad", grad);
}

void Optimizer::set_grad(int64_t param, const void* grad) {
  check_grad(param, grad);
  param_tables_.params()[param].grad = grad;
}

void Optimizer::set_data(int64_t param, void* data) {
  require_param(settings_, param);
  ParamSettings& p = settings_.params[static_cast<size_t>(param)];
  const ParamView& view = param_tables_.params()[param];
  MUONRT_REQUIRE(data || view.numel == 0, Status::kInvalidArgument, "param '", p.name,
                 "': data is NULL, but this rank holds ", view.numel,
                 " elements; pass the local shard");
  const Interval given = interval_of(data, view.numel, view.param_dtype, "data", p.name);
  require_reach(*device_, p.name, "data", data);
  for (size_t i = 0; data && i < settings_.params.size(); ++i) {
    const ParamView& other = param_tables_.params()[i];
    if (!other.grad) continue;
    require_apart(given, interval_of(other.grad, other.grads(), other.grad_dtype, "grad",
                                     settings_.params[i].name));
  }
  written_memory_.move(interval_of(view.param, view.numel, view.param_dtype, "data", p.name),
                       given);
  p.data = data;
  param_tables_.set_data(param, data);
  consistency_check_.schedule_local(param);
}

void Optimizer::reset_masters(const std::vector<int64_t>& params) {
  for (const int64_t param : params) require_param(settings_, param, "reset_masters: ");
  state_.reset_masters(*device_, settings_, params);
  for (const int64_t param : params) consistency_check_.schedule_weights(param);
}

StateView Optimizer::state(int64_t param, StateKind kind) const {
  require_param(settings_, param);
  return view_of(state_.at(param, kind, settings_.params[static_cast<size_t>(param)].name));
}

}  // namespace muonrt
