#include "train/curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "show/chart.hpp"

namespace muonrt::train {
namespace {

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string field(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

using Points = std::vector<std::pair<double, double>>;

Points losses(const Curve& curve, double CurvePoint::*which) {
  Points out;
  for (const CurvePoint& point : curve.points) {
    if (std::isfinite(point.*which)) out.push_back({static_cast<double>(point.step), point.*which});
  }
  return out;
}

/// The first losses would leave no room for the differences that matter, so the axis ends at the
/// largest loss after the first tenth of the steps.
void choose_axes(tool::Panel& panel) {
  double last = 1, low = HUGE_VAL, high = -HUGE_VAL;
  for (const auto& line : panel.lines) {
    if (!line.points.empty()) last = std::max(last, line.points.back().first);
  }
  for (const auto& line : panel.lines) {
    for (const auto& [step, loss] : line.points) {
      low = std::min(low, loss);
      if (step >= 0.1 * last) high = std::max(high, loss);
    }
  }
  panel.x = {"step", 0, last};
  panel.y = tool::round_axis("loss (nats per byte)", low < HUGE_VAL ? low : 0.0,
                             std::max(high, low < HUGE_VAL ? low : 1.0));
}

}  // namespace

std::string curves_csv(const std::vector<Curve>& curves) {
  std::string out = "step,optimizer,run,train_loss,val_loss,tokens,seconds\n";
  for (const Curve& curve : curves) {
    for (const CurvePoint& p : curve.points) {
      out += fmt::format("{},{},{},{},{},{},{:.3f}\n", p.step, field(curve.optimizer),
                         field(curve.run), field(p.train_loss), field(p.val_loss), p.tokens,
                         p.seconds);
    }
  }
  return out;
}

std::string curves_svg(const std::vector<Curve>& curves, const std::string& title,
                       const std::string& subtitle) {
  tool::Chart chart{title, subtitle, {{}}, {}};
  tool::Panel& panel = chart.panels[0];
  std::vector<tool::Panel::Line> validations;  // above the others
  struct Ends {
    size_t colour;
    double sum = 0;
    int runs = 0;
  };
  std::map<std::string, Ends> ends;
  for (const Curve& curve : curves) {
    auto& end = ends.try_emplace(curve.optimizer, Ends{ends.size()}).first->second;
    const std::string colour = tool::line_colour(end.colour);
    tool::Panel::Line& training = panel.lines.emplace_back();
    training.style = tool::Style{colour, 1, 0.3};
    training.points = losses(curve, &CurvePoint::train_loss);
    tool::Panel::Line& validation = validations.emplace_back();
    validation.style = tool::Style{colour, 2};
    validation.points = losses(curve, &CurvePoint::val_loss);
    if (validation.points.empty()) continue;
    end.sum += validation.points.back().second;
    if (++end.runs == 1) chart.legend.emplace_back(validation.style, curve.optimizer);
  }
  panel.lines.insert(panel.lines.end(), validations.begin(), validations.end());
  for (auto& [style, name] : chart.legend) {
    const Ends& end = ends.at(name);
    name += fmt::format(": validation, {:.3f} at the end", end.sum / end.runs);
    if (end.runs > 1) name += fmt::format(" (mean of {} runs)", end.runs);
  }
  chart.legend.push_back({{"#666666", 1, 0.5}, "training"});
  choose_axes(panel);
  return chart.svg();
}

}  // namespace muonrt::train
