#include "plan/report/report.hpp"

#include <algorithm>
#include <map>

namespace muonrt {

namespace {

/// A matrix is reported as tiny if it has fewer elements than this, or only one row or column. Such
/// a matrix has few singular values, and launches and latency take nearly all of its time.
constexpr int64_t kTinyElements = 256;

constexpr double kGoodBalance = 1.02;

template <class Rank, class Get>
Spread spread_of(const std::vector<Rank>& ranks, const Get& get) {
  Spread out;
  for (const Rank& rank : ranks) {
    out.largest = std::max(out.largest, get(rank));
    out.mean += static_cast<double>(get(rank)) / static_cast<double>(ranks.size());
  }
  return out;
}

void add_params(const Plan& plan, PlanReport& out) {
  const int64_t element_bytes = size_of(plan.problem().options.transport_dtype);
  out.params.resize(plan.problem().params.size());
  for (size_t id = 0; id < plan.matrices().size(); ++id) {
    const Matrix& m = plan.matrices()[id];
    ParamReport& row = out.params[static_cast<size_t>(m.param)];
    if (row.matrices++ == 0) row.first_matrix = static_cast<int32_t>(id);
    row.owners.push_back(m.owner);
    row.chunks.push_back(m.chunk);
    row.bytes += m.rows * m.cols * element_bytes;
    const double flops = orthogonalize_flops(m.method, m.rows, m.cols);
    row.flops += flops;
    out.flops += flops;
    out.flops_full += orthogonalize_flops_full(m.method, m.rows, m.cols);
  }
  for (size_t s = 0; s < plan.chunks().size(); ++s) {
    for (const Segment& segment : plan.chunks()[s].segments) {
      ParamReport& row = out.params[static_cast<size_t>(segment.param)];
      row.chunks.push_back(static_cast<int32_t>(s));
      row.sliced = true;
    }
  }
}

void add_chunks(const Plan& plan, PlanReport& out) {
  for (const ChunkSpec& chunk : plan.chunks()) {
    ChunkReport& row = out.chunks.emplace_back();
    std::map<int32_t, double> load;
    for (const int32_t id : chunk.matrices) {
      const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
      load[m.owner] += m.cost;
      row.cost += m.cost;
    }
    row.owners = static_cast<int32_t>(load.size());
    for (const Segment& segment : chunk.segments) {
      const Layout& layout = plan.problem().params[static_cast<size_t>(segment.param)].layout;
      row.owners = std::max(row.owners, static_cast<int32_t>(layout.mesh().size()));
    }
    for (const auto& [owner, cost] : load) row.largest_cost = std::max(row.largest_cost, cost);
  }
}

/// Returns the load of the busiest rank if the ranks that may own a matrix took turns, with the
/// costliest matrix first.
double round_robin_makespan(const Plan& plan) {
  std::vector<const Matrix*> order;
  for (const Matrix& m : plan.matrices()) order.push_back(&m);
  std::stable_sort(order.begin(), order.end(),
                   [](const Matrix* a, const Matrix* b) { return a->cost > b->cost; });
  std::vector<size_t> turn(plan.holders().candidates().size(), 0);
  std::vector<double> load(static_cast<size_t>(plan.problem().options.world), 0);
  for (const Matrix* m : order) {
    const auto set = static_cast<size_t>(plan.holders().group(m->param, m->index).candidates);
    const std::vector<int32_t>& ranks = plan.holders().candidates()[set];
    load[static_cast<size_t>(ranks[turn[set]++ % ranks.size()])] += m->cost;
  }
  return *std::max_element(load.begin(), load.end());
}

/// Returns a text that explains why no exchange overlaps with products, and what to do about it.
std::string no_overlap_reason(const Plan& plan) {
  if (plan.problem().options.window == 1) return "the window is 1; use 2 or more";
  const std::vector<double>& load = plan.load();
  const auto busiest = std::max_element(load.begin(), load.end()) - load.begin();
  const auto owned = std::count_if(plan.matrices().begin(), plan.matrices().end(),
                                   [&](const Matrix& m) { return m.owner == busiest; });
  if (owned == 1) return "the busiest rank owns one matrix; use fewer ranks, or accept the wait";
  return "the matrices of a rank are too small for several chunks; use fewer ranks, or accept the "
         "wait";
}

/// A warning, the number of parameters to which it applies, and the first of them.
struct Concern {
  int64_t count = 0;
  const ParamSpec* first = nullptr;
  void add(const ParamSpec& spec) {
    if (count++ == 0) first = &spec;
  }
  std::string subject() const {
    const std::string one = cat("param '", first->name, "' (shape ", first->layout.shape(), ")");
    return count == 1 ? one : cat(one, " and ", count - 1, " more");
  }
};

void add_warnings(const Plan& plan, PlanReport& out) {
  Concern tiny, empty, large;
  for (size_t p = 0; p < out.params.size(); ++p) {
    const ParamSpec& spec = plan.problem().params[p];
    if (spec.role != Role::kMuon) continue;
    if (out.params[p].matrices == 0) {
      empty.add(spec);
      continue;
    }
    const Matrix& m = plan.matrices()[static_cast<size_t>(out.params[p].first_matrix)];
    if (m.rows == 1 || m.cols == 1 || m.rows * m.cols < kTinyElements) tiny.add(spec);
    if (out.params[p].bytes / out.params[p].matrices > plan.problem().options.chunk_bytes)
      large.add(spec);
  }
  if (tiny.count > 0)
    out.warnings.push_back(cat(tiny.subject(),
                               ": a matrix this small has almost no spectrum to "
                               "flatten and costs mostly latency; use AdamW for it"));
  if (empty.count > 0)
    out.warnings.push_back(
        cat(empty.subject(), ": the parameter has no elements, so it has no matrices"));
  if (large.count > 0)
    out.warnings.push_back(cat(large.subject(), ": a matrix is larger than chunk_bytes (",
                               human_bytes(plan.problem().options.chunk_bytes),
                               "), so it is a chunk by itself and needs memory for all of it"));
  const int bound = max_peers(plan.problem().options);
  if (out.return_peers > bound)
    out.warnings.push_back(cat("return: a rank sends to ", out.return_peers,
                               " peers in one exchange, more than max_peers ", bound,
                               "; two levels would not reduce this number, or owners send the "
                               "updates of partial gradients directly"));
  if (out.traffic.moved_total > 0 && !plan.matrices().empty() && out.hidden_bytes == 0)
    out.warnings.push_back(
        cat("overlap: no exchange can run while matrices are orthogonalized, because ",
            no_overlap_reason(plan)));
  if (out.balance > kGoodBalance)
    out.warnings.push_back(cat("load: the busiest rank has ", fixed(out.balance, 4),
                               " x the proven lower bound, because there are few matrices, their "
                               "costs differ, or the caller has set owners"));
}

}  // namespace

std::string hash_text(const Plan& plan) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const uint64_t value = plan.hash();
  std::string out = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[value >> shift & 15];
  return out;
}

int64_t total_bytes(const PlanReport& report, size_t rank) {
  const RankTraffic& r = report.traffic.ranks[rank];
  return r.param_bytes + r.grad_bytes + r.master_bytes + r.moment_bytes + r.memory.message_bytes +
         r.memory.staged_bytes + (report.scratch.empty() ? 0 : report.scratch[rank]) +
         (report.checks.empty() ? 0 : report.checks[rank]);
}

PlanReport report_on(const Plan& plan, std::span<const int64_t> scratch,
                     std::span<const int64_t> checks) {
  PlanReport out;
  out.traffic = measure_traffic(plan);
  add_params(plan, out);
  add_chunks(plan, out);
  out.hidden_bytes = hidden_bytes(plan, out.traffic);
  if (plan.lower_bound() > 0) {
    out.balance = plan.makespan() / plan.lower_bound();
    out.round_robin = round_robin_makespan(plan) / plan.lower_bound();
  }
  const auto& ranks = out.traffic.ranks;
  out.sent = spread_of(ranks, [](const RankTraffic& r) { return r.sent; });
  out.received = spread_of(ranks, [](const RankTraffic& r) { return r.received; });
  out.message_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.memory.message_bytes; });
  out.staged_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.memory.staged_bytes; });
  out.state_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.memory.state_bytes; });
  out.param_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.param_bytes; });
  out.grad_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.grad_bytes; });
  out.master_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.master_bytes; });
  out.moment_bytes = spread_of(ranks, [](const RankTraffic& r) { return r.moment_bytes; });
  out.scratch.assign(scratch.begin(), scratch.end());
  out.checks.assign(checks.begin(), checks.end());
  const auto itself = [](int64_t bytes) { return bytes; };
  out.scratch_bytes = spread_of(out.scratch, itself);
  out.check_bytes = spread_of(out.checks, itself);
  std::vector<int64_t> totals;
  for (size_t r = 0; r < ranks.size(); ++r) totals.push_back(total_bytes(out, r));
  out.total_bytes = spread_of(totals, itself);
  out.largest_rank =
      static_cast<size_t>(std::max_element(totals.begin(), totals.end()) - totals.begin());
  for (const RankTraffic& r : ranks) out.return_peers = std::max(out.return_peers, r.peers);
  for (const ChunkSpec& chunk : plan.chunks()) out.relayed_chunks += chunk.relay > 0;
  add_warnings(plan, out);
  return out;
}

const char* content_name(const ChunkSpec& chunk) {
  if (chunk.kind == ChunkKind::kSlices) return "slices";
  return chunk.kind == ChunkKind::kPartialGrads ? "partial_grads" : "directions";
}

std::string layout_text(const ParamSpec& spec) {
  std::string out = spec.layout.describe();
  if (spec.grad_layout) out += cat("; gradient ", spec.grad_layout->describe());
  return out;
}

std::string return_text(const ChunkSpec& chunk) {
  return chunk.relay > 0 ? cat("over blocks of ", chunk.relay) : std::string("direct");
}

const char* state_name(const ParamSpec& spec) {
  if (!owner_assembles_gradient(spec)) return "local";
  return spec.role == Role::kMuon ? "owners" : "slices";
}

const char* form_name(const Plan& plan, size_t param, const ParamReport& report) {
  if (plan.problem().params[param].role == Role::kAdamW) return "adamw";
  if (report.matrices == 0) return "none";
  const Matrix& m = plan.matrices()[static_cast<size_t>(report.first_matrix)];
  return m.method.form == Form::kGram ? "gram" : "standard";
}

}  // namespace muonrt
