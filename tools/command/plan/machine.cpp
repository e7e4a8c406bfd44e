#include "command/plan/machine.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "api/handles.hpp"
#include "command/plan/explain_step.hpp"
#include "model/simulate.hpp"
#include "model/strategies.hpp"
#include "plan/machine/named_profiles.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

constexpr double kGiB = 1 << 30;

using Kinds = std::vector<std::pair<std::string, int64_t>>;

Kinds kinds_of(const muonrt_plan_rank_t& m) {
  return {{"parameters", m.param_bytes},
          {"gradients", m.grad_bytes},
          {"state", m.master_bytes + m.moment_bytes},
          {"staging", m.staged_bytes},
          {"messages", m.message_bytes},
          {"scratch", m.scratch_bytes + m.check_bytes}};
}

/// Returns the number with three significant digits.
std::string rounded(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

/// Returns a sentence that says what to change if a rank needs too much memory.
std::string remedy_for(const MachineProfile& machine, const muonrt_plan_rank_t& m) {
  const int64_t kept =
      m.param_bytes + m.grad_bytes + m.master_bytes + m.moment_bytes + m.check_bytes;
  const double limit = machine.memory_bytes / kGiB;
  if (static_cast<double>(kept) > machine.memory_bytes)
    return fmt::format(
        "Parameters, gradients and state of a rank need {} GiB: shard them over more ranks.",
        rounded(static_cast<double>(kept) / kGiB));
  return fmt::format(
      "Parameters, gradients and state of a rank need {} GiB: --memory {:.0f}GiB chooses chunks "
      "that need less for the rest.",
      rounded(static_cast<double>(kept) / kGiB), limit);
}

ComparisonRow row_of(const std::string& name, double seconds, const RankTimes& rank,
                     int64_t memory_bytes, int64_t sent_bytes) {
  ComparisonRow out;
  out.name = name;
  out.step = seconds;
  out.products = rank.products;
  out.exchange = rank.exchange;
  out.exposed = rank.exposed;
  out.local = rank.local;
  out.memory_bytes = memory_bytes;
  out.sent_bytes = sent_bytes;
  return out;
}

std::string headline_of(const MachineProfile& machine, const Simulation& step,
                        const muonrt_plan_rank_t& memory, bool fits) {
  const RankTimes& c = step.critical;
  const int digits = step.seconds < 0.01 ? 2 : step.seconds < 0.1 ? 1 : 0;
  const auto ms = [&](double seconds) { return fmt::format("{:.{}f}", seconds * 1e3, digits); };
  std::string out =
      fmt::format("step {} ms: products {}, exchange {} of which {} exposed, local {}",
                  ms(step.seconds), ms(c.products), ms(c.exchange), ms(c.exposed), ms(c.local));
  if (c.launch > 0.005 * c.seconds) out += fmt::format(", launches {}", ms(c.launch));
  out += fmt::format(
      "; {} of {:.0f} GiB per rank:", rounded(static_cast<double>(memory.total_bytes) / kGiB),
      machine.memory_bytes / kGiB);
  const char* separator = " ";
  for (const auto& [name, bytes] : kinds_of(memory)) {
    out += fmt::format("{}{} {}", separator, name, rounded(static_cast<double>(bytes) / kGiB));
    separator = ", ";
  }
  return out + (fits ? "; fits" : "; does not fit");
}

std::string json_of(const MachineProfile& machine, const Simulation& step,
                    const muonrt_plan_rank_t& memory, bool fits, const std::string& headline) {
  const RankTimes& c = step.critical;
  const auto number = [](auto value) { return fmt::format("{}", value); };
  std::vector<std::pair<std::string, std::string>> bytes;
  for (const auto& [name, of] : kinds_of(memory)) bytes.emplace_back(name + "_bytes", number(of));
  bytes.emplace_back("total_bytes", number(memory.total_bytes));
  bytes.emplace_back("device_bytes", number(machine.memory_bytes));
  return json_object({{"name", json_text(machine.name)},
                      {"title", json_text(machine.title)},
                      {"headline", json_text(headline)},
                      {"simulated_ranks", number(step.ranks.size())},
                      {"step_seconds", number(step.seconds)},
                      {"rank", number(c.rank)},
                      {"products_seconds", number(c.products)},
                      {"exchange_seconds", number(c.exchange)},
                      {"exposed_seconds", number(c.exposed)},
                      {"local_seconds", number(c.local)},
                      {"launch_seconds", number(c.launch)},
                      {"sent_bytes", number(c.sent_bytes)},
                      {"received_bytes", number(c.received_bytes)},
                      {"messages", number(c.messages)},
                      {"memory", json_object(bytes)},
                      {"fits", fits ? "true" : "false"}});
}

}  // namespace

std::string machine_names() { return profile_names(); }

std::string machine_text(const std::string& name) {
  for (const NamedProfile& p : named_profiles())
    if (name == p.name) return p.json;
  std::ifstream file(name, std::ios::binary);
  std::string out((std::istreambuf_iterator<char>(file)), {});
  if (!file.is_open() || file.bad())
    throw std::runtime_error(
        fmt::format("--machine '{}' is neither a machine nor a readable file; use one of {}, or "
                    "the path of a profile (tools/machines)",
                    name, machine_names()));
  return out;
}

Machine::Machine(const std::string& text)
    : profile_(std::make_shared<MachineProfile>(
          parse_profile(machine_text(text), "--machine '" + text + "'"))) {}

bool Machine::gpu() const { return profile_->gpu; }

MachineAnswer Machine::answer(const muonrt_plan_t* plan, const muonrt_plan_rank_t& memory,
                              bool traces) const {
  const Planning& planning = api::unwrap(plan, "muonrt plan");
  const auto simulated = std::make_shared<Simulation>(
      simulate(planning, *profile_, {.max_ranks = 64, .trace = traces}));
  const Simulation& step = *simulated;
  const bool fits = static_cast<double>(memory.total_bytes) <= profile_->memory_bytes;
  MachineAnswer out;
  out.headline = headline_of(*profile_, step, memory, fits);
  out.note = fmt::format(
      "model of {}; rank {}, which has the most work of {} simulated ranks of {}", profile_->title,
      step.critical.rank, step.ranks.size(), planning.plan().problem().options.world);
  if (!fits) out.remedy = remedy_for(*profile_, memory);
  out.json = json_of(*profile_, step, memory, fits, out.headline);
  out.trace = step.trace;
  out.seconds = step.seconds;
  out.step = simulated;
  return out;
}

double Machine::seconds(const muonrt_plan_t* plan) const {
  return simulate(api::unwrap(plan, "muonrt plan"), *profile_).seconds;
}

std::vector<ComparisonRow> Machine::compare(const muonrt_plan_t* plan,
                                            const MachineAnswer& answer) const {
  std::vector<ComparisonRow> out;
  for (const StrategyStep& s :
       compare_strategies(api::unwrap(plan, "muonrt plan"), *answer.step, *profile_)) {
    out.push_back(row_of(s.name, s.seconds, s.critical, s.memory_bytes, s.sent_bytes));
    out.back().assumption = s.assumption;
  }
  return out;
}

ComparisonRow Machine::row(const std::string& name, const muonrt_plan_t* plan,
                           const MachineAnswer& answer, const muonrt_plan_rank_t& memory) const {
  const PlanReport& report = api::unwrap(plan, "muonrt plan").reports().full;
  return row_of(name, answer.seconds, answer.step->critical, memory.total_bytes,
                report.sent.largest);
}

std::string Machine::explain(const muonrt_plan_t* plan, const MachineAnswer& answer,
                             const muonrt_plan_t* largest, const muonrt_plan_rank_t& memory) const {
  return explain_step(api::unwrap(plan, "muonrt plan"), *profile_, *answer.step,
                      api::unwrap(largest, "muonrt plan"), memory.rank);
}

}  // namespace muonrt::tool
