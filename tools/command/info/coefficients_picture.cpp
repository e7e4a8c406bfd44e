#include "command/info/coefficients_picture.hpp"

#include <fmt/format.h>

#include <cmath>

#include "show/chart.hpp"

namespace muonrt::tool {

namespace {

constexpr int kPoints = 3000;

Panel panel_of(const std::vector<NamedList>& lists, Panel panel) {
  const Axis x = panel.x;
  panel.height = 420;
  panel.y = {"", -0.25, 1.75};
  panel.lines.push_back({{"#777777", 1}, {{x.low, 1}, {x.high, 1}}});
  for (size_t i = 0; i < lists.size(); ++i) {
    Panel::Line line{{line_colour(i), 1.4, 0.85, i >= 7}, {}};
    for (int p = 0; p <= kPoints; ++p) {
      const double share = static_cast<double>(p) / kPoints;
      const double sigma = x.logarithmic ? x.low * std::pow(x.high / x.low, share)
                                         : x.low + (x.high - x.low) * share;
      const double value = image(lists[i].list, sigma);
      if (!std::isfinite(value)) break;
      line.points.push_back({sigma, value});
    }
    panel.lines.push_back(std::move(line));
  }
  return panel;
}

}  // namespace

std::string coefficients_picture(const std::vector<NamedList>& lists) {
  Panel whole, above;
  whole.width = 540;
  whole.x = {"singular value of the matrix divided by its norm", 1e-4, 1, true};
  above.width = 270;
  above.x = {"near 1: what rounding can reach", 0.95, 1.4, false, {1, 1.1, 1.2, 1.3, 1.4}};
  Chart chart{"What Newton-Schulz lists make of a singular value",
              "1 is the aim; a curve that leaves the picture right of 1 has used up its headroom",
              {panel_of(lists, whole), panel_of(lists, above)},
              {}};
  for (size_t i = 0; i < lists.size(); ++i) {
    chart.legend.push_back(
        {{line_colour(i), 3, 1, i >= 7},
         fmt::format("{} ({} steps)", lists[i].name, lists[i].list.steps.size())});
  }
  return chart.svg();
}

}  // namespace muonrt::tool
