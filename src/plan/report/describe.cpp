#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "plan/owners/packing_bound.hpp"
#include "plan/report/report.hpp"
#include "plan/report/text_table.hpp"

namespace muonrt {

namespace {

constexpr size_t kListWidth = 20;
constexpr double kNotable = 1.01;  // smallest ratio that is reported

using Align = TextTable::Align;

/// Returns text such as "0-3,7", "48 ranks" if the list would be long, or "-" if it is empty.
std::string ranges(std::vector<int32_t> values, const char* noun) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::string out;
  for (size_t i = 0; i < values.size() && out.size() <= kListWidth;) {
    size_t end = i + 1;
    while (end < values.size() && values[end] == values[end - 1] + 1) ++end;
    out += cat(out.empty() ? "" : ",", values[i]);
    if (end - i > 1) out += cat("-", values[end - 1]);
    i = end;
  }
  if (values.empty()) return "-";
  return out.size() <= kListWidth ? out : cat(values.size(), " ", noun);
}

std::string billions(double x) { return fixed(x / 1e9, 3); }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t n : shape) out += cat(out.empty() ? "" : " x ", n);
  return out.empty() ? "scalar" : out;
}

std::string spread_text(const Spread& spread) {
  return cat(human_bytes(spread.largest), " at most, ",
             human_bytes(static_cast<int64_t>(spread.mean)), " in the mean");
}

/// Describes how replicas share the work, and why.
std::string replicas_text(const Plan& plan) {
  if (plan.every_rank()) return "each matrix by every rank that holds it";
  std::string out =
      plan.each_replica() ? "each matrix once in every replica" : "each matrix once in the world";
  if (plan.problem().options.replica_mode == ReplicaMode::kAuto)
    out += cat(" (modelled: ", fixed(plan.once_seconds() * 1e3, 3), " ms once in the world, ",
               fixed(plan.each_seconds() * 1e3, 3), " ms in every replica, on ",
               plan.problem().options.machine.name, ")");
  return out;
}

/// Returns the name of the form and, for the Gram form, its restarts.
std::string method_text(const Plan& plan, size_t param, const ParamReport& row) {
  std::string out = form_name(plan, param, row);
  if (row.matrices == 0) return out;
  const Method& m = plan.matrices()[static_cast<size_t>(row.first_matrix)].method;
  if (m.form != Form::kGram) return out;
  for (const int i : m.restarts) out += cat(i == m.restarts.front() ? " {" : ", ", i);
  return out + (m.restarts.empty() ? " {}" : "}");
}

std::string method_line(const Plan& plan) {
  const auto& params = plan.problem().params;
  const bool automatic = std::any_of(params.begin(), params.end(), [](const ParamSpec& spec) {
    return spec.role == Role::kMuon && spec.form == FormChoice::kAuto;
  });
  return automatic ? cat("method      by shape: ", method_rule(), "\n") : std::string();
}

/// For each cost, in descending order, the number of matrices with this cost, and one of these
/// matrices.
using CostClasses = std::map<int64_t, std::pair<int64_t, const Matrix*>, std::greater<>>;

/// Returns a lower bound on the largest load if each matrix in the first `divided` cost classes
/// were divided by depth among `ranks` ranks. Each of these ranks would process some columns of the
/// long side, and would repeat the products of square matrices.
int64_t divided_bound(const Plan& plan, const CostClasses& classes, size_t divided, int64_t ranks) {
  std::map<int64_t, int64_t, std::greater<>> counts;
  for (const auto& [cost, members] : classes) {
    const auto& [count, m] = members;
    const bool divides = divided > 0;
    divided -= divides;
    counts[divides ? std::llround(orthogonalize_cost(m->method, m->rows, m->cols, ranks)) : cost] +=
        divides ? count * ranks : count;
  }
  std::vector<CostCount> items;
  for (const auto& [cost, count] : counts) items.push_back({cost, count});
  return packing_bound(items, std::ssize(plan.load()), 0, std::llround(plan.makespan()));
}

/// Describes the gain from dividing the largest matrices by depth. Returns an empty text if the
/// busiest rank has about the mean load, if dividing would not help, or if there are many different
/// costs.
std::string divided_line(const Plan& plan) {
  constexpr size_t kMaxClasses = 32, kMaxDivided = 4;
  const double mean = std::accumulate(plan.load().begin(), plan.load().end(), 0.0) /
                      static_cast<double>(plan.load().size());
  if (plan.makespan() <= kNotable * mean) return "";
  CostClasses classes;
  for (const Matrix& m : plan.matrices()) {
    auto& [count, first] = classes[std::llround(m.cost)];
    if (count++ == 0) first = &m;
    if (classes.size() > kMaxClasses) return "";
  }
  double best = plan.makespan();
  size_t divided = 0;
  int64_t ranks = 1;
  for (size_t d = 1; d <= std::min(kMaxDivided, classes.size()); ++d) {
    for (int64_t r = 2; r <= 64; r *= 2) {
      const auto bound = static_cast<double>(divided_bound(plan, classes, d, r));
      if (bound * kNotable >= best) continue;
      best = bound;
      divided = d;
      ranks = r;
    }
  }
  if (divided == 0) return "";
  return cat("undivided   busiest rank ", fixed(plan.makespan() / mean, 4),
             " x the mean load; if the matrices of the ",
             divided == 1 ? std::string("largest cost") : cat(divided, " largest costs"),
             " were divided by depth among ", ranks, " ranks each (not implemented), at least ",
             fixed(best / mean, 4), " x, so products would take up to ",
             fixed(100 * (1 - best / plan.makespan()), 1), "% less time\n");
}

/// Describes the number of peers of a return, and how many chunks have a return in two levels.
std::string return_line(const Plan& plan, const PlanReport& report) {
  const int bound = max_peers(plan.problem().options);
  std::string out =
      cat("return      to at most ", report.return_peers, " peers in one exchange (max_peers ",
          bound, report.return_peers > bound ? ": more if no replicas can forward)" : ")");
  if (report.relayed_chunks > 0)
    out += cat("; two levels in ", report.relayed_chunks, " of ", plan.chunks().size(),
               " chunks: owners return to one replica of each block, whose ranks forward");
  return out + "\n";
}

/// Describes how much of the traffic can overlap with products.
std::string overlap_line(const PlanReport& report) {
  const auto moved = static_cast<double>(report.traffic.moved_total);
  if (report.traffic.moved_total == 0) return "";
  return cat("overlap     ", fixed(100 * static_cast<double>(report.hidden_bytes) / moved, 1),
             "% of the traffic can be sent while matrices are orthogonalized\n");
}

/// Describes the memory of the rank that needs the most memory, by kind.
std::string memory_line(const PlanReport& report) {
  const size_t r = report.largest_rank;
  const RankTraffic& rank = report.traffic.ranks[r];
  std::string out = cat("memory      ", spread_text(report.total_bytes), "; rank ", r, ": ");
  const auto add = [&](const char* kind, int64_t bytes) {
    out += cat(out.ends_with(": ") ? "" : ", ", kind, " ", human_bytes(bytes));
  };
  add("parameters", rank.param_bytes);
  add("gradients", rank.grad_bytes);
  if (rank.master_bytes > 0) add("masters", rank.master_bytes);
  add("moments", rank.moment_bytes);
  add("messages", rank.memory.message_bytes);
  add("staged", rank.memory.staged_bytes);
  if (!report.scratch.empty()) add("scratch", report.scratch[r]);
  if (!report.checks.empty()) add("checks", report.checks[r]);
  return out + "\n";
}

std::string header(const Plan& plan, const PlanReport& report) {
  const PlanOptions& o = plan.problem().options;
  const auto& params = plan.problem().params;
  const auto muon = std::count_if(params.begin(), params.end(),
                                  [](const ParamSpec& spec) { return spec.role == Role::kMuon; });
  const double saved = report.flops_full > 0 ? 100 * (1 - report.flops / report.flops_full) : 0.0;
  return cat("plan        ", hash_text(plan), "\n", "world       ", o.world, " ranks; ",
             plan.matrices().size(), " matrices of ", muon, " Muon parameters, ",
             std::ssize(params) - muon, " AdamW parameters\n", "chunks      ", plan.chunks().size(),
             " of at most ", human_bytes(o.chunk_bytes), " at an owner, ", o.window,
             " in flight, transport ", name_of(o.transport_dtype), ", commit ",
             o.commit == CommitMode::kAtomic ? "atomic" : "eager", "\n", "arithmetic  ",
             billions(report.flops), " GFLOP a step (symmetric products save ", fixed(saved, 1),
             "%), ", replicas_text(plan), "\n", method_line(plan), "balance     busiest rank ",
             billions(plan.makespan()), " G, proven lower bound ", billions(plan.lower_bound()),
             " G, ratio ", fixed(report.balance, 4), ", of round-robin owners ",
             fixed(report.round_robin, 4), " (cost: ", cost_rule(), ")\n", divided_line(plan),
             "traffic     ", human_bytes(report.traffic.moved_total),
             " between ranks a step; a rank sends ", spread_text(report.sent), "; receives ",
             spread_text(report.received), "\n", overlap_line(report), return_line(plan, report),
             memory_line(report));
}

/// Limits the number of rows of a table that are printed, and returns a line with the number of
/// omitted rows.
class Limit {
 public:
  Limit(size_t rows, int64_t max_rows)
      : rows_(rows), shown_(max_rows > 0 ? std::min(rows, static_cast<size_t>(max_rows)) : rows) {}
  size_t shown() const { return shown_; }
  std::string rest() const {
    return shown_ < rows_ ? cat("... ", rows_ - shown_, " more\n") : std::string();
  }

 private:
  size_t rows_, shown_;
};

std::string param_table(const Plan& plan, const PlanReport& report, int64_t max_rows) {
  TextTable table({{"parameter", Align::kLeft},
                   {"shape"},
                   {"layout", Align::kLeft},
                   {"form", Align::kLeft},
                   {"owners", Align::kLeft},
                   {"chunks", Align::kLeft},
                   {"bytes"},
                   {"moved"},
                   {"GFLOP"},
                   {"state", Align::kLeft}});
  const Limit limit(report.params.size(), max_rows);
  for (size_t p = 0; p < limit.shown(); ++p) {
    const ParamSpec& spec = plan.problem().params[p];
    const ParamReport& row = report.params[p];
    const bool has_matrices = row.matrices > 0;
    table.add({spec.name, shape_text(spec.layout.shape()) + (spec.transposed ? " (in x out)" : ""),
               layout_text(spec), method_text(plan, p, row),
               ranges(row.sliced ? spec.layout.mesh().ranks() : row.owners, "ranks"),
               ranges(row.chunks, "chunks"), has_matrices ? human_bytes(row.bytes) : "-",
               has_matrices || row.sliced ? human_bytes(report.traffic.moved[p]) : "-",
               has_matrices ? billions(row.flops) : "-", state_name(spec)});
  }
  return table.text() + limit.rest();
}

std::string chunk_table(const Plan& plan, const PlanReport& report, int64_t max_rows) {
  TextTable table({{"chunk"},
                   {"content", Align::kLeft},
                   {"return", Align::kLeft},
                   {"matrices"},
                   {"owners"},
                   {"bytes"},
                   {"cost (G)"},
                   {"busiest owner"},
                   {"mean owner"}});
  const Limit limit(report.chunks.size(), max_rows);
  for (size_t s = 0; s < limit.shown(); ++s) {
    const ChunkReport& row = report.chunks[s];
    table.add({cat(s), content_name(plan.chunks()[s]), return_text(plan.chunks()[s]),
               cat(plan.chunks()[s].matrices.size()), cat(row.owners),
               human_bytes(plan.chunks()[s].bytes), billions(row.cost), billions(row.largest_cost),
               billions(row.owners > 0 ? row.cost / row.owners : 0)});
  }
  return table.text() + limit.rest();
}

std::string rank_table(const Plan& plan, const PlanReport& report, int64_t max_rows) {
  TextTable table({{"rank"},
                   {"matrices"},
                   {"cost (G)"},
                   {"chunks"},
                   {"sent"},
                   {"received"},
                   {"messages"},
                   {"staged"},
                   {"scratch"},
                   {"checks"},
                   {"state"}});
  const Limit limit(report.traffic.ranks.size(), max_rows);
  for (size_t r = 0; r < limit.shown(); ++r) {
    const RankTraffic& row = report.traffic.ranks[r];
    table.add({cat(r), cat(row.owned), billions(plan.load()[r]), cat(row.chunks),
               human_bytes(row.sent), human_bytes(row.received),
               human_bytes(row.memory.message_bytes), human_bytes(row.memory.staged_bytes),
               report.scratch.empty() ? "-" : human_bytes(report.scratch[r]),
               report.checks.empty() ? "-" : human_bytes(report.checks[r]),
               human_bytes(row.memory.state_bytes)});
  }
  return table.text() + limit.rest();
}

}  // namespace

std::string Plan::describe(int64_t max_rows, std::span<const int64_t> scratch,
                           std::span<const int64_t> checks) const {
  return describe(report_on(*this, scratch, checks), max_rows);
}

std::string Plan::describe(const PlanReport& report, int64_t max_rows) const {
  std::string out = header(*this, report);
  for (const std::string& table :
       {param_table(*this, report, max_rows), chunk_table(*this, report, max_rows),
        rank_table(*this, report, max_rows)})
    out += "\n" + table;
  if (!report.warnings.empty()) out += '\n';
  for (const std::string& warning : report.warnings) out += cat("warning: ", warning, "\n");
  return out;
}

}  // namespace muonrt
