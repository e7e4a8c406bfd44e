#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule.hpp"
#include "plan/plan.hpp"
#include "plan/traffic.hpp"

namespace muonrt {

/// Seconds until a step's last commit by a plain model of one rank, the one that each slot asks the
/// most of: a queue of products and local passes and a queue of exchanges, which run the stages in
/// `order` and wait for one another as the pipeline's streams do. An exchange takes the machine's
/// seconds of a message once, if it has bytes, and the bytes of the fuller direction; products and
/// local passes take their rates. No AdamW, no norm of all gradients. Predicts how two orders
/// compare; no machine's time.
double forecast(const std::vector<Action>& order, const std::vector<SlotLoad>& slots,
                const PlanOptions& options);

/// How a step compares with the return of each slot and the gather of a later one apart, and in one
/// group.
struct GroupForecast {
  double apart = 0, grouped = 0;  // seconds
  MachineRates rates = {};        // that they follow from
  /// Whether a group is worth it: saves a hundredth at least.
  bool worth() const { return grouped < 0.99 * apart; }
};
GroupForecast forecast_groups(const Plan& plan, const MachineRates& rates);
/// Whether its exchanges are ours to group: none is carried by functions of the caller's.
bool groupable(const Plan& plan);
/// "modelled: 1.234 ms a step apart, ..."
std::string to_text(const GroupForecast& forecast);

/// Whether the return of a slot and the gather of a later one share an exchange. Public values.
enum class ExchangeGroups : int32_t {
  kAuto = 0,     // where the communicator has groups and the forecast says that one is worth it
  kApart = 1,    // never
  kGrouped = 2,  // always
};

}  // namespace muonrt
