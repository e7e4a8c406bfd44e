#include "pipeline/forecast.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace muonrt {

namespace {

/// Seconds of a local pass for each second that its bytes take on the link: an H200's memory moves
/// 4e12 bytes/s, 4 for each that is sent, beside a link of 5e10.
constexpr double kLocalShare = 0.05;

/// The two queues, and when each slot's exchanges have arrived.
class Clocks {
 public:
  Clocks(const std::vector<SlotLoad>& slots, const PlanOptions& options)
      : slots_(slots),
        rates_(options.rates),
        window_(options.window),
        arrived_(slots.size(), 0),
        returned_(slots.size(), 0) {}

  void perform(const Action& action) {
    switch (action.stage) {
      case Stage::kScan:
      case Stage::kAdamW:
        return;
      case Stage::kGather:
        pack(action.slot);
        arrived_[at(action.slot)] = exchange(gather_bytes(action.slot));
        return;
      case Stage::kOrthogonalize:
        return orthogonalize(action);
      case Stage::kVote:
      case Stage::kOutcome:
        link_ = compute_ = std::max(link_, compute_) + rates_.message_seconds;
        return;
      case Stage::kCommit:
        compute_ = std::max(compute_, returned_[at(action.slot)]);
        compute_ += local(slots_[at(action.slot)].return_received);
        return;
    }
  }
  double end() const { return std::max(compute_, link_); }

 private:
  struct Bytes {
    int64_t sent, received;
  };
  static size_t at(int32_t slot) { return static_cast<size_t>(slot); }
  Bytes gather_bytes(int32_t slot) const {
    return {slots_[at(slot)].gather_sent, slots_[at(slot)].gather_received};
  }
  Bytes return_bytes(int32_t slot) const {
    return {slots_[at(slot)].return_sent, slots_[at(slot)].return_received};
  }
  double local(int64_t bytes) const {
    return kLocalShare * static_cast<double>(bytes) / rates_.bytes;
  }

  /// Behind what the products' queue has done so far. @return  when it has arrived.
  double exchange(Bytes bytes) {
    const auto most = static_cast<double>(std::max(bytes.sent, bytes.received));
    link_ = std::max(link_, compute_);
    if (most > 0) link_ += rates_.message_seconds + most / rates_.bytes;
    return link_;
  }

  void pack(int32_t slot) {
    if (slot >= window_) compute_ = std::max(compute_, arrived_[at(slot - window_)]);
    compute_ += local(slots_[at(slot)].gather_sent);
  }

  void orthogonalize(const Action& action) {
    const SlotLoad& slot = slots_[at(action.slot)];
    compute_ = std::max(compute_, arrived_[at(action.slot)]);
    if (action.slot >= window_) compute_ = std::max(compute_, returned_[at(action.slot - window_)]);
    compute_ += local(slot.gather_received) + slot.cost / rates_.flops + local(slot.return_sent);
    Bytes bytes = return_bytes(action.slot);
    if (action.gathers >= 0) {
      pack(action.gathers);
      const Bytes more = gather_bytes(action.gathers);
      bytes = {bytes.sent + more.sent, bytes.received + more.received};
    }
    returned_[at(action.slot)] = exchange(bytes);
    if (action.gathers >= 0) arrived_[at(action.gathers)] = returned_[at(action.slot)];
  }

  const std::vector<SlotLoad>& slots_;
  const MachineRates& rates_;
  const int32_t window_;
  double compute_ = 0, link_ = 0;
  std::vector<double> arrived_, returned_;
};

}  // namespace

double forecast(const std::vector<Action>& order, const std::vector<SlotLoad>& slots,
                const PlanOptions& options) {
  Clocks clocks(slots, options);
  for (const Action& action : order) clocks.perform(action);
  return clocks.end();
}

GroupForecast forecast_groups(const Plan& plan, const MachineRates& rates) {
  PlanOptions options = plan.problem().options;
  options.rates = rates;
  const auto slots = static_cast<int32_t>(plan.slots().size());
  const std::vector<SlotLoad> loads = measure_traffic(plan).slots;
  const auto seconds = [&](bool grouped) {
    return forecast(schedule(slots, options.window, options.commit, grouped && groupable(plan)),
                    loads, options);
  };
  return {seconds(false), seconds(true), rates};
}

bool groupable(const Plan& plan) {
  return std::none_of(plan.slots().begin(), plan.slots().end(),
                      [](const Slot& slot) { return slot.carried >= 0; });
}

std::string to_text(const GroupForecast& f) {
  return cat("modelled: ", fixed(f.apart * 1e3, 3), " ms a step apart, ", fixed(f.grouped * 1e3, 3),
             " ms in one, at ", f.rates.flops, " FLOP/s, ", f.rates.bytes, " byte/s and ",
             f.rates.message_seconds, " s an exchange of a rank; unmeasured");
}

}  // namespace muonrt
