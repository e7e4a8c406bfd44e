#include "plan/owners/cost.hpp"

#include <algorithm>

#include "plan/report/traffic.hpp"

namespace muonrt {

double step_seconds(const Plan& plan) {
  const MachineRates& rates = plan.problem().options.rates;
  int64_t bytes = 0, messages = 0;
  for (const RankTraffic& rank : measure_traffic(plan).ranks) {
    bytes = std::max({bytes, rank.sent, rank.received});
    messages = std::max(messages, rank.messages);
  }
  return plan.makespan() / rates.flops + static_cast<double>(bytes) / rates.bytes +
         static_cast<double>(messages) * rates.message_seconds;
}

}  // namespace muonrt
