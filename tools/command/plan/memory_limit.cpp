#include "command/plan/memory_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace muonrt::tool {

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr std::array<int64_t, 7> kChunks = {8 * kMiB,   16 * kMiB,  32 * kMiB, 64 * kMiB,
                                            128 * kMiB, 256 * kMiB, 512 * kMiB};
constexpr std::array<int64_t, 6> kWindows = {1, 2, 3, 4, 6, 8};

/// The settings to search: chunk_bytes, window, and whether the commit mode is eager.
using Point = std::tuple<int64_t, int64_t, bool>;

/// The quality of a point. Its fields are compared in this order, and smaller values are better.
struct Score {
  int64_t excess = 0;  // bytes over the limit
  double first = 0, second = 0, third = 0;
  int64_t bytes = 0;
  auto key() const { return std::tuple(excess, first, second, third, bytes); }
};

PlanArguments with(PlanArguments a, const Point& p) {
  a.chunk_bytes = std::get<0>(p);
  a.window = std::get<1>(p);
  a.commit = std::get<2>(p) ? "eager" : "atomic";
  return a;
}

class Search {
 public:
  Search(const PlanArguments& a, const ModelStages& model, const Machine* machine, int64_t limit)
      : a_(a), model_(model), machine_(machine), limit_(limit) {}

  /// Improves the coordinates one after the other until no change to a single coordinate helps.
  Point descend(Point at) {
    for (bool better = true; better;) {
      better = false;
      std::vector<Point> next;
      if (!a_.chunk_bytes)
        for (const int64_t c : kChunks) next.push_back({c, std::get<1>(at), std::get<2>(at)});
      better = take_best(at, next) || better;
      next.clear();
      if (!a_.window)
        for (const int64_t w : kWindows) next.push_back({std::get<0>(at), w, std::get<2>(at)});
      if (a_.commit.empty()) next.push_back({std::get<0>(at), std::get<1>(at), !std::get<2>(at)});
      better = take_best(at, next) || better;
    }
    return at;
  }

  const Score& score(const Point& p) {
    const auto [at, is_new] = known_.try_emplace(p);
    if (!is_new) return at->second;
    const PlannedModel planned = plan_model(with(a_, p), model_, 0);
    Score& out = at->second;
    out.bytes = planned.largest().total_bytes;
    out.excess = std::max<int64_t>(0, out.bytes - limit_);
    if (out.excess > 0) return out;
    if (machine_) {
      out.first = machine_->seconds(planned.stages[planned.shown].plan.get());
      return out;
    }
    for (const PlannedStage& s : planned.stages) {
      out.first += static_cast<double>(s.summary.moved_bytes);
      out.second -= static_cast<double>(s.summary.hidden_bytes);
      out.third += static_cast<double>(s.summary.chunks);
    }
    return out;
  }
  int64_t plans() const { return std::ssize(known_); }

 private:
  bool take_best(Point& at, const std::vector<Point>& next) {
    const Point before = at;
    for (const Point& p : next)
      if (score(p).key() < score(at).key()) at = p;
    return at != before;
  }

  const PlanArguments& a_;
  const ModelStages& model_;
  const Machine* machine_;
  int64_t limit_;
  std::map<Point, Score> known_;
};

std::string size_text(int64_t bytes) { return cell::bytes(bytes).text; }

}  // namespace

std::string MemoryChoice::flags() const {
  return fmt::format("--chunk-bytes {} --window {} --commit {}", chunk_bytes, window, commit);
}

std::string MemoryChoice::opt_json() const {
  return fmt::format("\"chunk_bytes\": {}, \"window\": {}, \"commit\": \"{}\"", chunk_bytes, window,
                     commit);
}

MemoryChoice choose_under_limit(const PlanArguments& a, const ModelStages& model,
                                const Machine* machine, int64_t limit) {
  Search search(a, model, machine, limit);
  const bool eager = a.commit == "eager";
  Point at = {a.chunk_bytes.value_or((a.device == "cuda" ? 256 : 64) * kMiB), a.window.value_or(3),
              eager};
  at = search.descend(at);
  if (search.score(at).excess > 0) {
    // Start from the settings that need the least memory, with one matrix in flight.
    const Point least = {a.chunk_bytes.value_or(1), a.window.value_or(1), false};
    Point least_eager = least;
    if (a.commit.empty() || eager) std::get<2>(least_eager) = true;
    const Point& smaller =
        search.score(least_eager).bytes < search.score(least).bytes || eager ? least_eager : least;
    at = search.descend(smaller);
    const Score& best = search.score(at);
    if (best.excess > 0)
      throw std::runtime_error(fmt::format(
          "--memory is {}, but a rank needs {}, even with {}; give at least --memory {}B, or shard "
          "over more ranks",
          size_text(limit), size_text(best.bytes),
          MemoryChoice{std::get<0>(at), std::get<1>(at), std::get<2>(at) ? "eager" : "atomic"}
              .flags(),
          best.bytes));
  }
  MemoryChoice out;
  out.chunk_bytes = std::get<0>(at);
  out.window = std::get<1>(at);
  out.commit = std::get<2>(at) ? "eager" : "atomic";
  out.total_bytes = search.score(at).bytes;
  out.plans = search.plans();
  return out;
}

}  // namespace muonrt::tool
