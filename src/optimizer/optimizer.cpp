#include "optimizer/optimizer.hpp"

#include <random>

#include "base/json.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/settings/describe.hpp"
#include "pipeline/batches.hpp"

namespace muonrt {

namespace {

/// A number that no other optimizer has: rank 0's draw.
uint64_t agreed_identity(Comm& comm) {
  std::random_device draw;
  const uint64_t mine = uint64_t{draw()} << 32 | draw();
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  comm.allgather(&mine, all.data(), sizeof mine);
  return all[0];
}

}  // namespace

std::unique_ptr<Optimizer> Optimizer::create(Comm& comm,
                                             const std::function<OptimizerSettings()>& read,
                                             const MakeDevice& make_device) {
  std::unique_ptr<Optimizer> out(new Optimizer());
  Optimizer& self = *out;
  Fingerprint fingerprint;
  together(comm, [&] {
    self.settings_ = read();
    validate(self.settings_, comm.rank(), comm.size());
    assign_owners(self.settings_, comm.size());
    if (self.settings_.reserved_sms < 0) self.settings_.reserved_sms = comm.occupied_sms();
    self.device_ = make_device(self.settings_);
    MUONRT_REQUIRE(comm.serves(*self.device_), Status::kNotSupported, "options: device is '",
                   self.device_->describe(), "', but the communicator (", comm.describe(),
                   ") works on host memory; use MUONRT_DEVICE_HOST, or a "
                   "communicator for that device");
    fingerprint = make_fingerprint(self.settings_, self.device_->describe());
    self.newton_schulz_ = make_newton_schulz(self.settings_);
  });
  fingerprint.compare(comm);
  together(comm, [&] {
    const auto plan = [&](bool in_blocks) {
      return std::make_unique<Plan>(
          make_problem(self.settings_, self.newton_schulz_, comm.size(), in_blocks));
    };
    self.plan_ = plan(false);
    if (block_period(self.settings_) > 1) self.block_plan_ = plan(true);
  });
  self.comm_ = comm.duplicate();
  self.comm_->set_timeout_ms(self.settings_.timeout_ms);
  self.identity_ = agreed_identity(*self.comm_);
  together(*self.comm_, [&] { self.take_memory(), self.list_written(), self.rehearse(); });
  return out;
}

// Streams go before the communicator that their tasks use, and both before the memory.
Optimizer::~Optimizer() {
  pipeline_.reset();
  block_pipeline_.reset();
  comm_.reset();
}

const GroupSettings& Optimizer::group_of(int64_t param) const {
  return settings_.groups[settings_.params[static_cast<size_t>(param)].group];
}

std::string Optimizer::describe(bool json) const {
  const auto scratch = [&](const Plan& plan) {
    return scratch_bytes(plan, newton_schulz_, device_->ops(), settings_.health_every > 0);
  };
  if (!json) {
    const std::string whole = plan_->describe(0, scratch(*plan_));
    if (!block_plan_) return whole;
    return cat(whole, "\nSteps 0, ", block_period(settings_),
               ", ... take whole matrices, as above; those between take blocks:\n\n",
               block_plan_->describe(0, scratch(*block_plan_)));
  }
  JsonWriter out;
  out.object([&] {
    plan_->write(out, scratch(*plan_));
    if (!block_plan_) return;
    out.field("block_period", block_period(settings_));
    out.key("block_plan");
    out.object([&] { block_plan_->write(out, scratch(*block_plan_)); });
  });
  return out.take();
}

void Optimizer::require_reach(int64_t param, const char* what, const void* memory) const {
  MUONRT_REQUIRE(device_->reaches(memory), Status::kInvalidArgument, "param '",
                 settings_.params[static_cast<size_t>(param)].name, "': ", what,
                 " is not in memory that the device reaches (", device_->describe(),
                 "); pass a buffer of that device");
}

void Optimizer::check_param(int64_t param, const char* where) const {
  MUONRT_REQUIRE(param >= 0 && param < static_cast<int64_t>(settings_.params.size()),
                 Status::kInvalidArgument, where, "param index is ", param, " (there are ",
                 settings_.params.size(), " parameters); use an index below that");
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
  MUONRT_REQUIRE(steps >= 0 && steps <= int64_t{1} << 53, Status::kInvalidArgument, "step is ",
                 steps, " (it counts committed steps, up to 2^53); correct it");
  steps_ = steps;
  for (size_t i = 0; i < adam_steps_.size(); ++i) {
    adam_steps_[i] = steps / group_of(static_cast<int64_t>(i)).update_every;
  }
}

}  // namespace muonrt
