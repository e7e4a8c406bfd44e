#include "train/step_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

namespace muonrt::train {

namespace {

constexpr size_t kBytes = size_t{256} << 20;

double microseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ClockOffset compare_clocks(const ClockReadings& root, const ClockReadings& rank) {
  double least = -HUGE_VAL, most = HUGE_VAL;
  for (size_t i = 0; i < ClockReadings::kBarriers; ++i) {
    least = std::max(least, root.before[i] - rank.after[i]);
    most = std::min(most, root.after[i] - rank.before[i]);
  }
  if (least <= 0 && most >= 0) return {};
  return {(least + most) / 2, (most - least) / 2};
}

void StepTrace::add(Comm& comm, const Optimizer& optimizer) {
  ClockReadings mine;
  for (size_t i = 0; i < ClockReadings::kBarriers; ++i) {
    mine.before[i] = microseconds();
    comm.barrier();
    mine.after[i] = microseconds();
  }
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<ClockReadings> all(ranks);
  comm.allgather(all.data(), &mine, sizeof mine);
  const ClockOffset clock = compare_clocks(all[0], mine);

  nlohmann::json events = nlohmann::json::parse(optimizer.trace(MUONRT_FORMAT_JSON));
  for (nlohmann::json& event : events)
    if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + clock.offset;
  // Perfetto shows this label next to the name of the rank.
  events.push_back({{"name", "process_labels"},
                    {"ph", "M"},
                    {"pid", comm.rank()},
                    {"args", {{"labels", fmt::format("clock +-{:.1f} us", clock.error)}}}});
  std::string text = events.dump();
  steps_.push_back(text.substr(1, text.size() - 2));
  size_t bytes = 0;
  for (const std::string& step : steps_) bytes += step.size();
  while (steps_.size() > 1 && (steps_.size() > kSteps || bytes > kBytes / ranks)) {
    bytes -= steps_.front().size();
    steps_.pop_front();
  }
}

std::string StepTrace::gather(Comm& comm) const {
  const std::string mine = fmt::format("{}", fmt::join(steps_, ",\n"));
  const auto bytes = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(comm.size()));
  comm.allgather(sizes.data(), &bytes, sizeof bytes);
  if (comm.rank() != 0) {
    if (bytes > 0) comm.exchange({{0, 0, mine.data(), bytes}}, {});
    return "";
  }
  std::string out = "[" + mine;
  for (int32_t rank = 1; rank < comm.size(); ++rank) {
    const int64_t theirs = sizes[static_cast<size_t>(rank)];
    if (theirs == 0) continue;
    out += out.size() > 1 ? ",\n" : "";
    const size_t at = out.size();
    out.resize(at + static_cast<size_t>(theirs));
    comm.exchange({}, {{rank, 0, out.data() + at, theirs}});
  }
  return out + "]\n";
}

}  // namespace muonrt::train
