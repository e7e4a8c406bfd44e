#include "optimizer/optimizer.hpp"

#include "optimizer/agreement.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/settings/describe.hpp"
#include "optimizer/work.hpp"

namespace muonrt {

// What one rank alone does lies between two collectives, with all the memory that the next one
// needs: so no rank is missed there.
std::unique_ptr<Optimizer> Optimizer::create(Comm& comm, FunctionRef<OptimizerSettings()> read,
                                             const MakeDevice& make_device) {
  std::unique_ptr<Optimizer> out;
  Fingerprint fingerprint;
  std::vector<NewtonSchulz> methods;
  together(comm, [&] {
    out.reset(new Optimizer());
    Optimizer& self = *out;
    self.settings_ = read();
    validate(self.settings_, comm.rank(), comm.size());
    assign_owners(self.settings_, comm.size());
    self.settings_.reserved_sms = comm.occupied_sms();
    self.device_ = make_device(self.settings_);
    MUONRT_REQUIRE(comm.serves(*self.device_), Status::kNotSupported, "options: device is '",
                   self.device_->describe(), "', but the communicator (", comm.describe(),
                   ") works on host memory; use MUONRT_DEVICE_HOST, or a "
                   "communicator for that device");
    fingerprint = make_fingerprint(self.settings_, self.device_->describe());
    methods = make_newton_schulz(self.settings_);
    self.record_ = VoteRecord(comm.rank(), comm.size(), self.settings_.commit);
  });
  Optimizer& self = *out;
  fingerprint.compare(comm);
  together(comm, [&] { self.plans_ = StepPlans(self.settings_, std::move(methods), comm.size()); });
  or_end(comm, [&] { self.comm_ = comm.duplicate(); });
  self.comm_->set_timeout_ms(self.settings_.timeout_ms);
  self.record_.agree_on_identity(*self.comm_);
  together(*self.comm_, [&] { self.take_memory(), self.plans_.rehearse(*self.device_); });
  return out;
}

// What the pipelines take comes last, for all of it is told where the rest lies.
void Optimizer::take_memory() {
  std::vector<SlotPlan> slots = plans_.whole().rank_slots(rank());
  state_ = State(*device_, settings_, plans_.whole(), slots, rank());
  tables_ = Tables(*device_, settings_, state_, slots, rank());
  state_.start(*device_, settings_);
  clipper_ = QkClipper(*device_, settings_, tables_.params());
  tables_.take_copy(*device_);
  Context context;
  context.device = device_.get();
  context.comm = comm_.get();
  context.tables = tables_.on_device();
  plans_.take_pipelines(context, rank(), std::move(slots),
                        make_work(settings_, tables_, state_, clipper_, rank()));
  tables_.bind_sums(plans_.whole_pipeline());
  written_ = WrittenMemory(settings_, tables_.params(), state_);
  first_check_ = FirstCheck(*device_, settings_, state_, plans_.whole(), tables_.params(), rank(),
                            comm_->size());
}

std::string Optimizer::describe(bool json) const {
  return plans_.describe(device_->ops(), settings_.health_every > 0,
                         check_bytes(plans_.whole(), settings_, device_->host_reaches_memory()),
                         json);
}

void Optimizer::set_group(int32_t index, const GroupSettings& group) {
  const auto count = static_cast<int32_t>(settings_.groups.size());
  MUONRT_REQUIRE(index >= 0 && index < count, Status::kInvalidArgument, "group index is ", index,
                 " (there are ", count, " groups); use an index below that");
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
  MUONRT_REQUIRE(steps >= 0 && steps <= kMostSteps, Status::kInvalidArgument, "step is ", steps,
                 " (it counts committed steps, up to 2^53); correct it");
  record_.set_steps(steps);
  tables_.set_steps(settings_, steps);
  first_check_.renew();
}

void Optimizer::resume(int64_t steps, const std::vector<int64_t>& updates, const RandomKeys& keys) {
  set_steps(steps);
  for (size_t i = 0; i < updates.size(); ++i)
    tables_.set_updates(static_cast<int64_t>(i), updates[i]);
  tables_.set_random_keys(keys);
}

int64_t Optimizer::updates(int64_t param) const {
  require_param(settings_, param);
  return tables_.updates(param);
}

void Optimizer::set_updates(int64_t param, int64_t updates) {
  require_param(settings_, param);
  MUONRT_REQUIRE(updates >= 0 && updates <= kMostSteps, Status::kInvalidArgument, "param '",
                 settings_.params[static_cast<size_t>(param)].name, "': updates is ", updates,
                 " (it counts committed steps, up to 2^53); correct it");
  tables_.set_updates(param, updates);
  first_check_.renew();
}

void Optimizer::check_grad(int64_t param, const void* grad) const {
  require_param(settings_, param);
  const ParamView& view = tables_.params()[param];
  const std::string& name = settings_.params[static_cast<size_t>(param)].name;
  const Interval given = interval_of(grad, view.grads(), view.grad_dtype, "grad", name);
  if (grad) written_.require_apart_from(given);
  require_reach(*device_, name, "grad", grad);
}

void Optimizer::set_grad(int64_t param, const void* grad) {
  check_grad(param, grad);
  tables_.params()[param].grad = grad;
}

void Optimizer::set_data(int64_t param, void* data) {
  require_param(settings_, param);
  ParamSettings& p = settings_.params[static_cast<size_t>(param)];
  const ParamView& view = tables_.params()[param];
  MUONRT_REQUIRE(data || view.numel == 0, Status::kInvalidArgument, "param '", p.name,
                 "': data is null (this rank holds ", view.numel,
                 " elements); pass the local shard");
  const Interval given = interval_of(data, view.numel, view.param_dtype, "data", p.name);
  require_reach(*device_, p.name, "data", data);
  for (size_t i = 0; data && i < settings_.params.size(); ++i) {
    const ParamView& other = tables_.params()[i];
    if (!other.grad) continue;
    require_apart(given, interval_of(other.grad, other.grads(), other.grad_dtype, "grad",
                                     settings_.params[i].name));
  }
  written_.move(interval_of(view.param, view.numel, view.param_dtype, "data", p.name), given);
  p.data = data;
  tables_.set_data(param, data);
  first_check_.renew_here(param);
}

void Optimizer::take_params(const std::vector<int64_t>& list) {
  for (const int64_t param : list) require_param(settings_, param, "take_params: ");
  state_.take_params(*device_, settings_, list);
  for (const int64_t param : list) first_check_.renew_weights(param);
}

StateView Optimizer::state(int64_t param, StateKind kind) const {
  require_param(settings_, param);
  return view_of(state_.at(param, kind, settings_.params[static_cast<size_t>(param)].name));
}

}  // namespace muonrt
