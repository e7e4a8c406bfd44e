#include "command/bench/step_parts.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "api/handles.hpp"
#include "command/bench/bench_report.hpp"
#include "command/plan/machine.hpp"
#include "model/simulate.hpp"
#include "plan/machine/named_profiles.hpp"

namespace muonrt::tool {

namespace {

constexpr const char* kExposed = "exposed";

/// Returns the kind of a span, for example "pack" for "pack 3".
std::string kind_of(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789");
  const bool numbered = digits + 1 < name.size() && name[digits] == ' ';
  return numbered ? name.substr(0, digits) : name;
}

StepParts fastest_parts(const std::vector<StepParts>& steps) {
  return *std::min_element(steps.begin(), steps.end(), [](const StepParts& a, const StepParts& b) {
    return a.ms.front().second < b.ms.front().second;
  });
}

StepParts median_parts(const std::vector<StepParts>& steps) {
  StepParts out = steps.front();
  for (auto& [name, ms] : out.ms) {
    std::vector<double> all;
    for (const StepParts& step : steps)
      for (const auto& [other, value] : step.ms)
        if (other == name) all.push_back(value);
    ms = median_of(all);
  }
  return out;
}

}  // namespace

StepParts step_parts(const std::string& trace) {
  struct Rank {
    double begin = std::numeric_limits<double>::infinity(), end = 0, busy = 0;
  };
  std::map<int, Rank> ranks;
  std::map<std::string, double> parts = {{"products", 0}, {"local", 0}, {"exchange", 0}}, kinds;
  for (const nlohmann::json& event : nlohmann::json::parse(trace)) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), us = event.at("dur");
    Rank& rank = ranks[event.at("pid")];
    rank.begin = std::min(rank.begin, begin);
    rank.end = std::max(rank.end, begin + us);
    const bool computes = event.at("tid") == 0;
    if (computes) rank.busy += us;
    const std::string kind = kind_of(event.at("name"));
    kinds[kind] += us;
    parts[!computes ? "exchange" : kind == "newton-schulz" ? "products" : "local"] += us;
  }
  double first = std::numeric_limits<double>::infinity(), last = 0, exposed = 0;
  for (const auto& [number, rank] : ranks) {
    first = std::min(first, rank.begin);
    last = std::max(last, rank.end);
    exposed += rank.end - rank.begin - rank.busy;
  }
  const double mean = 1e-3 / static_cast<double>(std::max<size_t>(1, ranks.size()));
  StepParts out;
  out.ms.emplace_back("step", ranks.empty() ? 0 : (last - first) * 1e-3);
  for (const char* part : {"products", "local", "exchange"})
    out.ms.emplace_back(part, parts[part] * mean);
  out.ms.emplace_back(kExposed, exposed * mean);
  for (const auto& [kind, us] : kinds) out.ms.emplace_back("  " + kind, us * mean);
  return out;
}

StepParts modelled_parts(const muonrt_plan* plan, const std::string& machine, int ranks,
                         int threads) {
  const MachineProfile profile =
      find_profile(machine_text(machine), "--machine '" + machine + "'").with_ranks(ranks, threads);
  const Simulation step = simulate(api::unwrap(plan, "muonrt bench step"), profile,
                                   {.max_ranks = std::max(8, ranks), .trace = true});
  return step_parts(step.trace);
}

PartsTable compare_parts(const std::vector<StepParts>& measured, const StepParts& modelled) {
  Table table({{"part", "part", Table::Align::kLeft},
               {"measured_ms", "measured ms"},
               {"fastest_ms", "fastest ms"},
               {"modelled_ms", "modelled ms"},
               {"ratio", "ratio"},
               {"fastest_ratio", "to fastest"}});
  const auto by_name = [](const StepParts& parts) {
    return std::map<std::string, double>(parts.ms.begin(), parts.ms.end());
  };
  const std::map<std::string, double> fastest = by_name(fastest_parts(measured));
  std::map<std::string, double> model = by_name(modelled);
  const auto ratio = [](double of, double to) {
    return to > 0 ? cell::number(of / to, 2) : cell::nothing();
  };
  for (const auto& [name, ms] : median_parts(measured).ms)
    table.add({{name, json_text(name.substr(name.find_first_not_of(' ')))},
               cell::number(ms, 3),
               cell::number(fastest.at(name), 3),
               cell::number(model[name], 3),
               ratio(model[name], ms),
               ratio(model[name], fastest.at(name))});
  std::string rows;
  for (size_t i = 0; i < table.rows(); ++i) rows += (i > 0 ? "," : "") + table.json(i);
  return {table.text(), "[" + rows + "]"};
}

void PartsReport::add(const std::string& shape, const std::string& strategy,
                      const std::string& machine, const PartsTable& parts) {
  text +=
      "\n" + shape + ", " + strategy + ": measured, and modelled on " + machine + "\n" + parts.text;
  json += (json.empty() ? "" : ",") + json_object({{"shape", json_text(shape)},
                                                   {"strategy", json_text(strategy)},
                                                   {"parts", parts.json}});
}

}  // namespace muonrt::tool
