#include "train/curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "show/chart.hpp"

namespace muonrt::train {
namespace {

std::string field(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

using Points = std::vector<std::pair<double, double>>;

Points losses(const Curve& curve, double CurvePoint::*which) {
  Points out;
  for (const CurvePoint& point : curve.points) {
    if (std::isfinite(point.*which)) out.push_back({static_cast<double>(point.step), point.*which});
  }
  return out;
}

/// Sets the axis of the losses. The axis ends at the largest loss after the first tenth of the
/// steps, because earlier losses are so large that later differences would not be visible.
void choose_axes(tool::Chart& chart) {
  double last = 1, low = HUGE_VAL, high = -HUGE_VAL;
  for (const auto& line : chart.lines) {
    if (!line.points.empty()) last = std::max(last, line.points.back().first);
  }
  for (const auto& line : chart.lines) {
    for (const auto& [step, loss] : line.points) {
      low = std::min(low, loss);
      if (step >= 0.1 * last) high = std::max(high, loss);
    }
  }
  chart.x = {"step", 0, last};
  chart.y = tool::round_axis("loss (nats per byte)", low < HUGE_VAL ? low : 0.0,
                             std::max(high, low < HUGE_VAL ? low : 1.0));
}

}  // namespace

std::string curves_csv(const std::vector<Curve>& curves) {
  std::string out = "step,optimizer,train_loss,val_loss,tokens,seconds\n";
  for (const Curve& curve : curves) {
    for (const CurvePoint& p : curve.points) {
      out += fmt::format("{},{},{},{},{},{:.3f}\n", p.step, curve.optimizer, field(p.train_loss),
                         field(p.val_loss), p.tokens, p.seconds);
    }
  }
  return out;
}

std::string curves_svg(const std::vector<Curve>& curves, const std::string& title,
                       const std::string& subtitle) {
  tool::Chart chart{title, subtitle};
  std::vector<tool::Chart::Line> validations;  // drawn above the other lines
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string colour = tool::line_colour(i);
    tool::Chart::Line& training = chart.lines.emplace_back();
    training.style = {colour, 1, 0.3};
    training.points = losses(curves[i], &CurvePoint::train_loss);
    const tool::Style strong{colour, 2};
    const Points points = losses(curves[i], &CurvePoint::val_loss);
    if (points.empty()) continue;
    chart.legend.emplace_back(strong, fmt::format("{}: validation, {:.3f} at the end",
                                                  curves[i].optimizer, points.back().second));
    validations.push_back({strong, points});
  }
  chart.lines.insert(chart.lines.end(), validations.begin(), validations.end());
  chart.legend.push_back({{"#666666", 1, 0.5}, "training"});
  choose_axes(chart);
  return chart.svg();
}

}  // namespace muonrt::train
