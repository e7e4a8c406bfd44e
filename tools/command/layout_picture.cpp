#include "command/layout_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "command/table.hpp"
#include "layout/blocks.hpp"
#include "show/svg.hpp"

namespace muonrt::tool {

namespace {

constexpr double kLeft = 64, kTop = 92, kPlotWidth = 620, kPlotHeight = 460, kLegend = 270;
constexpr double kDigit = 7.2;  // width of a character at 12 px, on the safe side
constexpr size_t kMostBlocks = 40000, kLegendRows = 22, kSubtitle = 118;

/// What the ranks of one shard hold, in every replica the same.
struct Shard {
  std::vector<int> ranks;  // in replica order
  std::vector<Block> blocks;
  int64_t numel = 0;
};

struct Picture {
  Layout layout;  // at most 2-D
  int64_t rows = 1, cols = 1;
  std::vector<Shard> shards;
  double cell_width = 1, cell_height = 1;

  double width() const { return cell_width * static_cast<double>(cols); }
  double height() const { return cell_height * static_cast<double>(rows); }
  double x(int64_t col) const { return kLeft + cell_width * static_cast<double>(col); }
  double y(int64_t row) const { return kTop + cell_height * static_cast<double>(row); }
};

Picture collect(const Layout& given) {
  Picture p{given.as_matrix(), 1, 1, {}, 1, 1};
  std::tie(p.rows, p.cols) = matrix_shape(p.layout);
  MUONRT_REQUIRE(p.rows > 0 && p.cols > 0, Status::kInvalidArgument,
                 "picture: the tensor has no elements (there is nothing to draw); give a shape "
                 "without 0");
  size_t blocks = 0;
  for (int64_t s = 0; s < p.layout.shard_count(); ++s) {
    Shard shard;
    for (int64_t r = 0; r < p.layout.replicas(); ++r) shard.ranks.push_back(p.layout.rank_of(r, s));
    shard.blocks = blocks_of(p.layout, shard.ranks[0]);
    for (const Block& b : shard.blocks) shard.numel += b.numel();
    blocks += shard.blocks.size();
    MUONRT_REQUIRE(blocks <= kMostBlocks, Status::kInvalidArgument, "picture: more than ",
                   kMostBlocks,
                   " rectangles (they could not be told apart); draw a smaller shape with the same "
                   "layout");
    p.shards.push_back(std::move(shard));
  }
  // Squares where that gives a readable picture; else each side is stretched for itself.
  const auto rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
  const double widest = kPlotWidth / cols, highest = kPlotHeight / rows;
  p.cell_width = p.cell_height = std::min({widest, highest, 56.0});
  const bool single = p.cell_width >= 7;  // elements can be told apart
  p.cell_width = std::max(p.cell_width, std::min(widest, (single ? 120 : 380) / cols));
  p.cell_height = std::max(p.cell_height, std::min(highest, (single ? 56 : 280) / rows));
  return p;
}

/// Light enough for dark letters. The first ones are told apart with any kind of colour vision.
std::string colour(size_t shard, size_t shards) {
  static constexpr std::array<const char*, 8> kFew = {"#8ecae6", "#f4a261", "#a3c585", "#e5989b",
                                                      "#ffe08a", "#b8a1d9", "#5fb3a3", "#c9ada7"};
  if (shards <= kFew.size()) return kFew[shard];
  const double hue = std::fmod(static_cast<double>(shard) * 137.508 + 205, 360);
  static constexpr std::array<int, 3> kLight = {78, 66, 87};
  return fmt::format("hsl({:.0f},58%,{}%)", hue, kLight[shard % kLight.size()]);
}

/// "0, 4" or "0, 4, 8, ... (16)"; addends of one tensor with + between them.
std::string names(const Picture& p, const std::vector<int>& ranks, size_t most) {
  const char* between = p.layout.addends() > 1 ? "+" : ",";
  std::string out;
  for (size_t i = 0; i < ranks.size() && i < most; ++i) {
    out += fmt::format("{}{}", i > 0 ? between : "", ranks[i]);
  }
  return ranks.size() > most ? out + ".." : out;
}

std::string draw_blocks(const Picture& p) {
  std::string out, labels;
  const double line = std::min(p.cell_width, p.cell_height) >= 4 ? 1.2 : 0.3;
  for (size_t s = 0; s < p.shards.size(); ++s) {
    const Shard& shard = p.shards[s];
    out += fmt::format("<g fill=\"{}\" stroke=\"#33415c\" stroke-width=\"{}\">\n",
                       colour(s, p.shards.size()), line);
    for (const Block& b : shard.blocks) {
      const double x = p.x(b.col), y = p.y(b.row), w = p.x(b.col + b.cols) - x,
                   h = p.y(b.row + b.rows) - y;
      out += svg::rect(x, y, w, h);
      for (const size_t most : {size_t{4}, size_t{1}}) {
        const std::string name = names(p, shard.ranks, most);
        if (kDigit * static_cast<double>(name.size()) + 4 > w || h < 13) continue;
        labels += svg::text(x + w / 2, y + h / 2 + 4.2, "text-anchor=\"middle\"", name);
        break;
      }
    }
    out += "</g>\n";
  }
  return out + labels;
}

/// Lines between elements, where they are large enough to be seen.
std::string draw_grid(const Picture& p) {
  std::string path;
  const double right = p.x(p.cols), bottom = p.y(p.rows);
  if (p.cell_height >= 7) {
    for (int64_t r = 1; r < p.rows; ++r)
      path += fmt::format("M{} {:.1f}H{:.1f}", kLeft, p.y(r), right);
  }
  if (p.cell_width >= 7) {
    for (int64_t c = 1; c < p.cols; ++c)
      path += fmt::format("M{:.1f} {}V{:.1f}", p.x(c), kTop, bottom);
  }
  return path.empty() ? ""
                      : "<path d=\"" + path +
                            "\" stroke=\"#33415c\" stroke-opacity=\"0.22\" stroke-width=\"0.7\" "
                            "fill=\"none\"/>\n";
}

/// Indices beside the matrix: all of them, or those where a block begins, as far as they fit.
std::string draw_indices(const Picture& p) {
  std::set<int64_t> rows, cols;
  for (const Shard& shard : p.shards) {
    for (const Block& b : shard.blocks) {
      rows.insert(b.row);
      cols.insert(b.col);
    }
  }
  if (p.cell_height >= 13) {
    for (int64_t r = 0; r < p.rows; ++r) rows.insert(r);
  }
  if (p.cell_width >= 20) {
    for (int64_t c = 0; c < p.cols; ++c) cols.insert(c);
  }
  std::string out;
  const auto into_cell = [](double size) { return size >= 13 ? size / 2 + 4 : 9; };
  double free_from = 0;
  for (const int64_t r : rows) {
    const double y = p.y(r) + into_cell(p.cell_height);
    if (y < free_from) continue;
    out += svg::text(kLeft - 8, y, "text-anchor=\"end\" class=\"i\"", fmt::format("{}", r));
    free_from = y + 13;
  }
  free_from = 0;
  for (const int64_t c : cols) {
    const std::string name = fmt::format("{}", c);
    const double half = kDigit * static_cast<double>(name.size()) / 2;
    const double x = p.x(c) + (p.cell_width >= 20 ? p.cell_width / 2 : half);
    if (x - half < free_from) continue;
    out += svg::text(x, kTop - 8, "text-anchor=\"middle\" class=\"i\"", name);
    free_from = x + half + 6;
  }
  return out;
}

std::string draw_legend(const Picture& p, double left) {
  const bool addends = p.layout.addends() > 1;
  const double room = (kLegend - 34) / kDigit;
  std::string out;
  std::vector<int> empty;
  double y = kTop + 11;
  size_t shown = 0, holding = 0;
  for (size_t s = 0; s < p.shards.size(); ++s) {
    const Shard& shard = p.shards[s];
    if (shard.numel == 0) {
      empty.insert(empty.end(), shard.ranks.begin(), shard.ranks.end());
      continue;
    }
    ++holding;
    if (shown == kLegendRows) continue;
    ++shown;
    out += svg::rect(left, y - 11, 14, 14,
                     fmt::format("fill=\"{}\" stroke=\"#33415c\"", colour(s, p.shards.size())));
    const std::string size =
        fmt::format(": {} element{}", cell::grouped(shard.numel).text, shard.numel == 1 ? "" : "s");
    const std::string head = shard.ranks.size() == 1 ? "rank " : addends ? "addends " : "ranks ";
    size_t most = shard.ranks.size();
    while (most > 1 &&
           static_cast<double>((head + names(p, shard.ranks, most) + size).size()) > room)
      --most;
    out += svg::text(left + 22, y, "", head + names(p, shard.ranks, most) + size);
    y += 20;
  }
  if (shown < holding) {
    out += svg::text(left + 22, y, "", fmt::format("and {} more", holding - shown));
    y += 20;
  }
  if (!empty.empty()) {
    std::sort(empty.begin(), empty.end());
    size_t most = empty.size();
    const std::string head = empty.size() == 1 ? "nothing on rank " : "nothing on ranks ";
    while (most > 1 && static_cast<double>((head + names(p, empty, most)).size()) > room + 3)
      --most;
    out += svg::text(left, y + 4, "class=\"i\"", head + names(p, empty, most));
  }
  return out;
}

}  // namespace

std::string layout_picture(const Layout& layout) {
  const Picture p = collect(layout);
  const double left = kLeft + std::max(p.width(), 160.0) + 34;
  std::string subtitle = layout.describe();
  if (subtitle.size() > kSubtitle) subtitle = subtitle.substr(0, kSubtitle - 3) + "...";
  const double text_width = kDigit * static_cast<double>(subtitle.size()) + 2 * 24;
  const size_t rows = std::min(p.shards.size(), kLegendRows) + 2;
  const double width = std::max({left + kLegend, text_width, 480.0}),
               height = kTop + std::max(p.height(), 20.0 * static_cast<double>(rows)) + 28;
  const std::string shape =
      layout.shape().empty() ? "scalar" : fmt::format("{}", fmt::join(layout.shape(), " x "));
  return svg::begin(width, height, 12, "#1b263b") +
         "<style>.i{fill:#5c677d;font-size:11px}</style>\n" +
         svg::text(24, 30, "font-size=\"16\" font-weight=\"600\"",
                   shape + " over " + layout.mesh().describe()) +
         svg::text(24, 50, "class=\"i\"", subtitle) + draw_blocks(p) + draw_grid(p) +
         draw_indices(p) + draw_legend(p, left) + svg::kEnd;
}

}  // namespace muonrt::tool
