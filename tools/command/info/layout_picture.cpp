#include "command/info/layout_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "layout/blocks.hpp"
#include "show/chart.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

constexpr double kWidth = 620, kHeight = 460, kLargestElement = 56, kLeast = 120;
constexpr size_t kMaxBlocks = 40000, kMaxTicks = 12, kMaxRanks = 8, kLegendRows = 22,
                 kSubtitle = 118;

/// Returns a text such as "rank 3: 8 elements" or "ranks 0, 4, 8, ... (16): 1,024 elements". If the
/// ranks hold partial gradients, "+" joins them.
std::string name_of(const Layout& layout, const std::vector<int>& ranks, int64_t elements) {
  const bool partial_grads = layout.partial_count() > 1;
  const size_t shown = std::min(ranks.size(), kMaxRanks);
  std::string out = ranks.size() == 1 ? "rank " : partial_grads ? "partial, ranks " : "ranks ";
  out += fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<int64_t>(shown),
                                     partial_grads ? "+" : ", "));
  if (shown < ranks.size()) out += fmt::format(", ... ({})", ranks.size());
  if (elements == 0) return out + ": nothing";
  return out +
         fmt::format(": {} element{}", cell::grouped(elements).text, elements == 1 ? "" : "s");
}

/// Returns an axis with ticks at the edges of the blocks, or at round numbers if there are too many
/// edges.
Axis axis_of(const char* name, double low, double high, const std::set<double>& edges) {
  Axis axis{name, low, high};
  if (edges.size() <= kMaxTicks) axis.ticks.assign(edges.begin(), edges.end());
  return axis;
}

}  // namespace

std::string layout_picture(const Layout& given) {
  const Layout layout = given.as_matrix();
  const auto [rows, cols] = matrix_shape(layout);
  if (rows == 0 || cols == 0)
    throw std::runtime_error("picture: the tensor has no elements to draw; give a shape without 0");
  const std::string shape =
      given.shape().empty() ? "scalar" : fmt::format("{}", fmt::join(given.shape(), " x "));
  std::string subtitle = given.describe();
  if (subtitle.size() > kSubtitle) subtitle = subtitle.substr(0, kSubtitle - 3) + "...";
  Chart chart{shape + " over " + given.mesh().describe(), subtitle};
  std::set<double> row_edges{0}, column_edges{0};
  size_t left_out = 0;
  for (int64_t s = 0; s < layout.shard_count(); ++s) {
    std::vector<int> ranks;
    for (int64_t r = 0; r < layout.replicas(); ++r) ranks.push_back(layout.rank_of(r, s));
    const Style style{area_colour(static_cast<size_t>(s))};
    int64_t elements = 0;
    for (const Block& b : blocks_of(layout, ranks[0])) {
      const auto x = static_cast<double>(b.col), y = static_cast<double>(b.row);
      const auto width = static_cast<double>(b.cols), height = static_cast<double>(b.rows);
      chart.boxes.push_back({style, x, y, width, height});
      column_edges.insert({x, x + width});
      row_edges.insert({y, y + height});
      elements += b.numel();
    }
    if (chart.boxes.size() > kMaxBlocks)
      throw std::runtime_error(
          fmt::format("picture: more than {} blocks, which would be too small to see; draw a "
                      "smaller shape with the same layout",
                      kMaxBlocks));
    if (chart.legend.size() < kLegendRows) {
      chart.legend.push_back({elements ? style : Style{}, name_of(layout, ranks, elements)});
    } else {
      ++left_out;
    }
  }
  if (left_out) chart.legend.push_back({{}, fmt::format("and {} more", left_out)});
  const auto height = static_cast<double>(rows), width = static_cast<double>(cols);
  chart.x = axis_of("column", 0, width, column_edges);
  chart.y = axis_of("row", height, 0, row_edges);
  // Draw elements as squares, unless this makes one side of the picture too short to read.
  const double element = std::min({kWidth / width, kHeight / height, kLargestElement});
  chart.width = std::max(element * width, kLeast);
  chart.height = std::max(element * height, kLeast);
  return chart.svg();
}

}  // namespace muonrt::tool
