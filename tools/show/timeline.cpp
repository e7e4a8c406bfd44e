#include "show/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "base/text.hpp"
#include "show/chart.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Span = Timeline::Span;
using Work = Timeline::Work;

constexpr double kWidth = 720;               // pixels
constexpr double kLane = 18, kRankGap = 10;  // height of a lane, and the space between two ranks
constexpr double kLeastWidth = 1.5;          // pixels
constexpr size_t kMaxRanks = 8, kMaxChunks = 12;
constexpr const char* kNoChunk = "#c4c9cf";

struct Range {
  double start, end;
  double length() const { return end - start; }
};

Range range_of(const std::vector<Span>& spans) {
  if (spans.empty())
    throw std::runtime_error("timeline: no step was traced, so there is nothing to draw");
  Range out{spans[0].start, spans[0].end};
  for (const Span& s : spans) {
    out.start = std::min(out.start, s.start);
    out.end = std::max(out.end, s.end);
  }
  return out;
}

std::vector<int32_t> ranks_of(const std::vector<Span>& spans) {
  std::set<int32_t> ranks;
  for (const Span& s : spans) ranks.insert(s.rank);
  return {ranks.begin(), ranks.end()};
}

std::string colour_of(int32_t chunk) {
  return chunk < 0 ? kNoChunk : area_colour(static_cast<size_t>(chunk));
}

/// Returns the longest label that fits into the box of a span; for example, "return 3" or "R3", and
/// "newton-schulz 3" or "3".
std::string label_of(const Span& span, double width) {
  const std::string word = span.name.substr(0, span.name.find(" exchange"));
  if (span.chunk < 0) return word;
  const std::string whole = fmt::format("{} {}", word, span.chunk);
  if (label_fits(whole, width) || word.empty()) return whole;
  const bool exchange = span.work == Work::kExchange;
  return (exchange ? std::string(1, static_cast<char>(std::toupper(word[0]))) : "") +
         fmt::format("{}", span.chunk);
}

std::string hint_of(const Span& span, double from) {
  std::string out = fmt::format("rank {}: {}", span.rank, span.name);
  if (span.chunk >= 0) out += fmt::format(" of chunk {}", span.chunk);
  out += fmt::format(", {:.3f} to {:.3f} ms", 1e3 * (span.start - from), 1e3 * (span.end - from));
  return span.bytes > 0 ? out + ", " + human_bytes(span.bytes) + " sent" : out;
}

/// Adds the boxes of one lane.
/// @param spans  the spans, sorted by start.
/// @param top    the top of the lane, in pixels.
void add_lane(Chart& chart, const std::vector<const Span*>& spans, double top, const Range& range) {
  const double least = kLeastWidth * 1e3 * range.length() / kWidth;  // milliseconds
  double drawn_to[] = {-1, -1};  // end of the passes drawn so far, and of other work drawn so far
  for (const Span* const s : spans) {
    // Boxes of local passes are less tall than boxes of products, so that both can have the color
    // of their chunk.
    const double height = s->work == Work::kLocal ? kLane / 2 : kLane;
    Chart::Box box{{colour_of(s->chunk)},
                   1e3 * (s->start - range.start),
                   top + kLane - height,
                   1e3 * (s->end - s->start),
                   height};
    double& drawn = drawn_to[height == kLane];
    if (box.x + box.width < drawn) continue;  // too narrow to be visible next to the previous box
    box.width = std::max(box.width, least);
    drawn = box.x + box.width;
    if (height == kLane) box.label = label_of(*s, kLeastWidth * box.width / least);
    box.hint = hint_of(*s, range.start);
    chart.boxes.push_back(box);
  }
}

void add_legend(Chart& chart, const std::vector<Span>& spans, size_t ranks, size_t shown) {
  std::set<int32_t> chunks;
  bool without = false;
  for (const Span& s : spans) {
    if (s.chunk >= 0) chunks.insert(s.chunk);
    without = without || s.chunk < 0;
  }
  size_t listed = 0;
  for (const int32_t chunk : chunks)
    if (listed++ < kMaxChunks)
      chart.legend.push_back({{colour_of(chunk)}, fmt::format("chunk {}", chunk)});
  if (chunks.size() > kMaxChunks)
    chart.legend.push_back({{}, fmt::format("and {} more chunks", chunks.size() - kMaxChunks)});
  if (without) chart.legend.push_back({{kNoChunk}, "whole step"});
  if (shown < ranks) chart.legend.push_back({{}, fmt::format("{} of {} ranks", shown, ranks)});
}

}  // namespace

std::string Timeline::shares() const {
  const double length = range_of(spans).length();
  double products = 0, local = 0;
  for (const Span& s : spans) {
    if (s.work == Work::kProducts) products += s.end - s.start;
    if (s.work == Work::kLocal) local += s.end - s.start;
  }
  const double all = std::max(length, 1e-12) * static_cast<double>(ranks_of(spans).size());
  return fmt::format("step {:.4g} ms: products {:.0f}%, local passes {:.0f}%, waiting {:.0f}%",
                     1e3 * length, 100 * products / all, 100 * local / all,
                     100 * (1 - (products + local) / all));
}

std::string Timeline::svg() const {
  const Range range = range_of(spans);
  const std::vector<int32_t> ranks = ranks_of(spans);
  const size_t shown = std::min(ranks.size(), kMaxRanks);
  std::map<std::pair<int32_t, bool>, std::vector<const Span*>> lanes;
  for (const Span& s : spans) lanes[{s.rank, s.work == Work::kExchange}].push_back(&s);
  for (auto& [lane, list] : lanes)
    std::stable_sort(list.begin(), list.end(),
                     [](const Span* a, const Span* b) { return a->start < b->start; });
  Chart chart{title, shares() + (note.empty() ? "" : "; " + note)};
  chart.width = kWidth;
  chart.height = static_cast<double>(shown) * (2 * kLane + kRankGap) + kRankGap;
  chart.x = {"ms (low: pack, unpack, commit; G: gather, R: return, relay)", 0,
             std::max(1e3 * range.length(), 1e-9)};
  chart.y = {"", chart.height, 0};
  for (size_t i = 0; i < shown; ++i) {
    const int32_t rank = ranks[shown < 2 ? 0 : i * (ranks.size() - 1) / (shown - 1)];
    const double top = kRankGap + static_cast<double>(i) * (2 * kLane + kRankGap);
    add_lane(chart, lanes[{rank, false}], top, range);
    add_lane(chart, lanes[{rank, true}], top + kLane, range);
    for (const bool exchange : {false, true}) {
      chart.y.ticks.push_back(top + (exchange ? 1.5 : 0.5) * kLane);
      chart.y.labels.push_back(exchange ? "exchange" : fmt::format("rank {}  compute", rank));
    }
  }
  add_legend(chart, spans, ranks.size(), shown);
  return chart.svg();
}

std::vector<Span> last_step(const std::string& chrome_trace) {
  std::vector<Span> out;
  int64_t last = -1;
  for (const nlohmann::json& event : nlohmann::json::parse(chrome_trace)) {
    if (event["ph"] != "X") continue;
    const nlohmann::json& args = event["args"];
    const auto step = args["step"].get<int64_t>();
    if (step < last) continue;
    if (step > last) out.clear();
    last = step;
    Span span;
    span.rank = event["pid"];
    span.work = event["tid"] == 1           ? Work::kExchange
                : args.contains("matrices") ? Work::kProducts
                                            : Work::kLocal;
    span.start = event["ts"].get<double>() * 1e-6;
    span.end = span.start + event["dur"].get<double>() * 1e-6;
    span.chunk = args.value("chunk", -1);
    span.bytes = args.value("bytes_sent", int64_t{0});
    span.name = event["name"];
    if (span.chunk >= 0) span.name.resize(span.name.rfind(' '));
    out.push_back(std::move(span));
  }
  return out;
}

}  // namespace muonrt::tool
