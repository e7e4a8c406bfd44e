#include "command/plan/explain_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "command/plan/split_by_depth.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return fmt::format("{:.{}f} ms", value, value < 1 ? 3 : value < 10 ? 2 : 1);
}
std::string size_text(int64_t bytes) { return cell::bytes(bytes).text; }
std::string count_text(int64_t n, const char* one, const char* many) {
  return fmt::format("{} {}", cell::grouped(n).text, n == 1 ? one : many);
}
std::string rate_text(double bytes) { return fmt::format("{:.4g} GB/s", bytes / 1e9); }

/// Returns a text such as "3.16 TFLOP".
std::string flop_text(double flop) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e15, "PFLOP"}, {1e12, "TFLOP"}};
  for (const auto& [size, unit] : kUnits)
    if (flop >= size) return fmt::format("{:.3g} {}", flop / size, unit);
  return fmt::format("{:.3g} GFLOP", flop / 1e9);
}

class Explanation {
 public:
  Explanation(const Planning& planning, const MachineProfile& profile, const Simulation& step)
      : planning_(planning),
        plan_(planning.plan()),
        profile_(profile),
        step_(step),
        rank_(step.critical.rank),
        chunks_(plan_.rank_chunks(rank_)) {}

  std::string products() const {
    const RankTimes& c = step_.critical;
    std::vector<double> flops(plan_.load().size(), 0);
    double total = 0;
    int64_t owned = 0;
    int32_t largest = -1;
    for (size_t id = 0; id < plan_.matrices().size(); ++id) {
      const Matrix& m = plan_.matrices()[id];
      const double f = orthogonalize_flops(m.method, m.rows, m.cols);
      flops[static_cast<size_t>(m.owner)] += f;
      total += f;
      if (m.owner != rank_) continue;
      ++owned;
      if (largest < 0 || m.cost > plan_.matrices()[static_cast<size_t>(largest)].cost)
        largest = static_cast<int32_t>(id);
    }
    const double mine = flops[static_cast<size_t>(rank_)];
    const double mean = total / static_cast<double>(flops.size());
    if (largest < 0)
      return fmt::format("products {}: rank {} orthogonalizes no matrix.", ms(c.products), rank_);
    const Matrix& m = plan_.matrices()[static_cast<size_t>(largest)];
    const double alone = MatrixSeconds(planning_, profile_).of(largest);
    return fmt::format(
        "products {}: rank {} orthogonalizes {} with {}; the mean rank has {}. The largest is {}, "
        "{} x "
        "{} in the {} form, which takes {} by itself, {:.0f} TFLOP/s (symmetric products count "
        "half).",
        ms(c.products), rank_, count_text(owned, "matrix", "matrices"), flop_text(mine),
        flop_text(mean), name_of(m), m.rows, m.cols,
        m.method.form == Form::kGram ? "Gram" : "standard", ms(alone),
        orthogonalize_flops(m.method, m.rows, m.cols) / alone / 1e12);
  }

  std::string split() const {
    const DepthSplit s = split_by_depth(planning_, profile_);
    if (s.before <= 1.02 * s.mean || s.rows == 0) return "";
    const std::string busiest =
        fmt::format("division by depth: the busiest rank has products of {}, the mean {}",
                    ms(s.before), ms(s.mean));
    if (s.matrices == 0)
      return fmt::format("{}. {} matrices cost as much as the largest one, {} x {}.", busiest,
                         s.equally_large, s.rows, s.cols);
    const std::string which = count_text(s.matrices, "largest matrix", "largest matrices");
    if (s.after * 1.02 >= s.before)
      return fmt::format(
          "{}. To divide matrices by depth would not help: with the {} among {} ranks each the "
          "busiest rank would have {}, because products of square matrices are repeated.",
          busiest, which, s.ranks, ms(s.after));
    return fmt::format(
        "{}. With the {} divided by depth among {} ranks each (not implemented), the busiest rank "
        "would have {}. For a matrix of {} x {} each of its ranks would send {} more, for {} "
        "of Gram matrices: {} inside a node, {} between nodes.",
        busiest, which, s.ranks, ms(s.after), s.rows, s.cols, size_text(s.extra_bytes),
        count_text(s.sums, "sum", "sums"),
        ms(static_cast<double>(s.extra_bytes) / profile_.node_bytes),
        ms(static_cast<double>(s.extra_bytes) / profile_.network_bytes));
  }

  std::string exchange() const {
    // Bytes by exchange (gather, return, forwarding), link (node, network) and direction (out, in).
    int64_t bytes[3][2][2] = {};
    for (const RankChunk& c : chunks_) {
      add(bytes[0], c.gather_sends, c.gather_receives);
      add(bytes[1], c.return_sends, c.return_receives);
      add(bytes[2], c.relay_sends, c.relay_receives);
    }
    std::string out = fmt::format(
        "exchange {}: rank {} sends {} and receives {} in {}", ms(step_.critical.exchange), rank_,
        size_text(step_.critical.sent_bytes), size_text(step_.critical.received_bytes),
        count_text(step_.critical.messages, "message", "messages"));
    if (step_.critical.sent_bytes + step_.critical.received_bytes == 0) return out + ".";
    constexpr const char* kNames[] = {"gathers", "returns", "forwarding to replicas"};
    double least = 0;
    const char* separator = ": ";
    for (size_t e : {0, 1, 2}) {
      double slowest = 0;
      std::string links;
      for (size_t link : {0, 1}) {
        const int64_t most = std::max(bytes[e][link][0], bytes[e][link][1]);
        if (most == 0) continue;
        const double rate = link == 0 ? profile_.node_bytes : profile_.network_bytes;
        slowest = std::max(slowest, static_cast<double>(most) / rate);
        links +=
            fmt::format("{}{} {} {}", links.empty() ? "" : " and ", size_text(most),
                        link == 0 ? "inside the node at" : "between nodes at", rate_text(rate));
      }
      if (links.empty()) continue;
      least += slowest;
      out += fmt::format("{}{} {} for {}", separator, kNames[e], ms(slowest), links);
      separator = "; ";
    }
    const double rest = step_.critical.exchange - least;
    if (rest > 0) out += fmt::format("; latencies and waiting for other ranks {}", ms(rest));
    return out + ".";
  }

  std::string exposed() const {
    struct Part {
      const Span* span;
      int64_t exposed;
    };
    std::vector<std::pair<int64_t, int64_t>> busy;
    for (const Span& s : step_.spans)
      if (!s.on_comm() && s.end > s.begin) busy.emplace_back(s.begin, s.end);
    std::sort(busy.begin(), busy.end());
    std::vector<Part> parts;
    for (const Span& s : step_.spans) {
      if (!s.on_comm() || s.end <= s.begin) continue;
      int64_t open = s.end - s.begin;
      for (const auto& [begin, end] : busy)
        open -= std::max<int64_t>(0, std::min(end, s.end) - std::max(begin, s.begin));
      if (open > 0) parts.push_back({&s, open});
    }
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.exposed > b.exposed; });
    std::string out = fmt::format("exposed {}", ms(step_.critical.exposed));
    if (parts.empty()) return out + ": all exchanges are hidden.";
    std::map<std::string, double> by_name;
    for (const Part& p : parts) by_name[p.span->name] += static_cast<double>(p.exposed) / 1e9;
    const char* separator = ": ";
    for (const auto& [name, seconds] : by_name) {
      out += fmt::format("{}{} {}", separator, name, ms(seconds));
      separator = ", ";
    }
    separator = ". The longest: ";
    constexpr size_t kShown = 3;
    for (size_t i = 0; i < std::min(kShown, parts.size()); ++i) {
      const Span& s = *parts[i].span;
      out += fmt::format("{}{} of the {}", separator,
                         ms(static_cast<double>(parts[i].exposed) / 1e9), what(s));
      if (s.kind == SpanKind::kExchange && s.bytes_received + s.bytes_sent > 0)
        out +=
            fmt::format(" ({} in, {} out)", size_text(s.bytes_received), size_text(s.bytes_sent));
      out += ", because " + reason(s);
      separator = "; ";
    }
    return out + ".";
  }

  std::string local() const {
    std::map<std::string, double> by_name;
    for (const Span& s : step_.spans)
      if (s.kind == SpanKind::kLocal) by_name[s.name] += static_cast<double>(s.end - s.begin) / 1e9;
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [name, seconds] : by_name)
      if (seconds > 0) order.emplace_back(seconds, name);
    std::sort(order.rbegin(), order.rend());
    std::string out =
        fmt::format("local {} at {}:", ms(step_.critical.local), rate_text(profile_.pass_bytes));
    const char* separator = " ";
    double sum = 0;
    for (const auto& [seconds, name] : order) {
      out += fmt::format("{}{} {}", separator, name, ms(seconds));
      separator = ", ";
      sum += seconds;
    }
    // The rest is local work, either in spans of products or outside any span.
    const double rest = step_.critical.local - sum;
    if (rest > 1e-6) out += fmt::format("{}normalization and others {}", separator, ms(rest));
    int64_t muon = 0, adamw = 0;
    for (const ParamSpec& p : plan_.problem().params)
      (p.role == Role::kMuon ? muon : adamw) += p.layout.local_numel(rank_);
    return out + fmt::format(". The rank holds {} elements of Muon and {} of AdamW.",
                             cell::grouped(muon).text, cell::grouped(adamw).text);
  }

  std::string launches() const {
    if (step_.critical.launch <= 0.005 * step_.critical.seconds) return "";
    return fmt::format(
        "launches {}: the device waits for the host, which needs {:.3g} us to enqueue "
        "an operation.",
        ms(step_.critical.launch), profile_.launch_seconds * 1e6);
  }

 private:
  std::string name_of(const Matrix& m) const {
    const ParamSpec& spec = plan_.problem().params[static_cast<size_t>(m.param)];
    std::string out = spec.name;
    if (spec.stack) out += fmt::format(" [expert {}]", m.index / parts_of(spec));
    if (!spec.parts.empty())
      out += " part " + spec.parts[static_cast<size_t>(m.index % parts_of(spec))].name;
    return out;
  }

  void add(int64_t (&to)[2][2], const std::vector<Region>& sends,
           const std::vector<Region>& receives) const {
    const auto nodes = static_cast<int32_t>(profile_.node_ranks);
    const auto link = [&](const Region& r) { return r.peer / nodes == rank_ / nodes ? 0 : 1; };
    for (const Region& r : sends)
      if (r.peer != rank_) to[link(r)][0] += r.bytes;
    for (const Region& r : receives)
      if (r.peer != rank_) to[link(r)][1] += r.bytes;
  }

  static std::string what(const Span& s) {
    if (s.kind == SpanKind::kVote) return s.name;
    return fmt::format("{} of chunk {}", s.name, s.chunk);
  }

  /// Returns the reason why this rank's products did not hide an exchange.
  std::string reason(const Span& s) const {
    if (s.kind == SpanKind::kVote) return "all ranks must vote before they commit";
    const std::string name = s.name;
    int64_t before = 0, after = 0;
    for (const Span& p : step_.spans) {
      if (p.kind != SpanKind::kProducts || p.end <= p.begin) continue;
      if (p.begin < s.begin || p.chunk < s.chunk) before += p.end - p.begin;
      if (p.chunk > s.chunk) after += p.end - p.begin;
    }
    const auto seconds = [](int64_t ns) { return ms(static_cast<double>(ns) / 1e9); };
    if (name == "gather exchange") {
      if (before == 0) return "the rank has no products in a chunk before it";
      return fmt::format("the chunks before it have products of {}{}", seconds(before),
                         before < s.end ? " only" : ", which have ended");
    }
    if (after == 0) return "the rank has no products in a chunk after it";
    if (after < s.end - s.begin)
      return fmt::format("the chunks after it have products of {} only", seconds(after));
    return fmt::format(
        "the chunks after it have products of {}, but these wait for their own gathers",
        seconds(after));
  }

  const Planning& planning_;
  const Plan& plan_;
  const MachineProfile& profile_;
  const Simulation& step_;
  int32_t rank_;
  std::vector<RankChunk> chunks_;
};

std::string memory_of(const Planning& planning, int32_t rank) {
  const Plan& plan = planning.plan();
  const PlanReport& report = planning.reports().full;
  const RankTraffic& t = report.traffic.ranks[static_cast<size_t>(rank)];
  int64_t muon = 0;
  for (const ParamSpec& p : plan.problem().params)
    if (p.role == Role::kMuon) muon += p.layout.local_numel(rank);
  const PlanOptions& o = plan.problem().options;
  std::string out = fmt::format(
      "memory of rank {}: parameters {} and gradients {} belong to the trainer; masters {} and "
      "moments {} are the state",
      rank, size_text(t.param_bytes), size_text(t.grad_bytes), size_text(t.master_bytes),
      size_text(t.moment_bytes));
  if (t.memory.staged_bytes > 0)
    out += fmt::format(
        "; the updates of {} elements of Muon are staged until the vote, {} (none with "
        "--commit eager)",
        cell::grouped(muon).text, size_text(t.memory.staged_bytes));
  out += fmt::format(
      "; messages of {} in flight need {}",
      count_text(std::min<int64_t>(o.window, std::ssize(plan.chunks())), "chunk", "chunks"),
      size_text(t.memory.message_bytes));
  if (!report.scratch.empty() && report.scratch[static_cast<size_t>(rank)] > 0)
    out += fmt::format("; the largest batch of matrices needs {} of scratch",
                       size_text(report.scratch[static_cast<size_t>(rank)]));
  return out + ".";
}

}  // namespace

std::string explain_step(const Planning& planning, const MachineProfile& profile,
                         const Simulation& step, const Planning& largest, int32_t memory_rank) {
  const Explanation e(planning, profile, step);
  std::string out;
  for (const std::string& line : {e.products(), e.split(), e.exchange(), e.exposed(), e.local(),
                                  e.launches(), memory_of(largest, memory_rank)})
    if (!line.empty()) out += line + "\n";
  return out;
}

}  // namespace muonrt::tool
