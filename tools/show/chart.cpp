#include "show/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace muonrt::tool {

namespace {

constexpr double kMargin = 24, kTop = 80, kBottom = 58, kBetween = 34, kRow = 20;
constexpr double kName = 32;  // distance in the legend from its left edge to the names
// upper bound for the width of a character, because the viewer's font is unknown
constexpr double kCharacter = 7.3;
constexpr double kTitleCharacter = 10, kLabelCharacter = 6.2;
constexpr int kTicks = 6;
// Replaces colors on a dark background. Viewers that ignore styles use the colors in the
// attributes.
constexpr const char* kDarkColours =
    "<style>@media (prefers-color-scheme: dark) {svg {fill: #d6dde6} [fill=\"white\"] {fill: "
    "#0d1117} "
    "[fill=\"#555555\"] {fill: #9da7b3} [stroke=\"#555555\"] {stroke: #9da7b3} "
    "[stroke=\"#e3e3e3\"] {stroke: #2a313a} [stroke=\"#ffffff\"] {stroke: #0d1117} "
    "[stroke=\"#000000\"] {stroke: #ffffff}}</style>\n";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

std::string text(double x, double y, const std::string& attributes, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     escaped(content));
}

std::string segment(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, attributes);
}

std::string drawn(const Style& s) {
  return s.width > 0 ? fmt::format(
                           "fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
                           "stroke-linejoin=\"round\"",
                           s.colour, s.width, s.opacity)
                     : fmt::format("fill=\"{}\" fill-opacity=\"{}\"", s.colour, s.opacity);
}

/// Returns the spacing between ticks: 1, 2, 2.5 or 5 times a power of ten, at least span / kTicks.
double round_step(double span) {
  const double raw = span / kTicks, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10.0 * power;
}

/// Returns the multiples of `step` in [low, high].
std::vector<double> multiples(double step, double low, double high) {
  std::vector<double> out;
  for (double i = std::ceil(low / step - 1e-6); i * step <= high + 1e-6 * step; ++i) {
    out.push_back(i * step + 0.0);
  }
  return out;
}

std::vector<double> ticks_of(const Axis& axis) {
  if (!axis.ticks.empty()) return axis.ticks;
  const double low = std::min(axis.low, axis.high), high = std::max(axis.low, axis.high);
  return multiples(round_step(high - low), low, high);
}

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart) {
    size_t longest = 0;
    for (const std::string& label : chart.y.labels) longest = std::max(longest, label.size());
    left_ += kCharacter * static_cast<double>(longest);
    if (longest > 0) left_ -= 40;  // the margin is wide enough for numbers
  }

  double right() const { return left_ + chart_.width; }
  double bottom() const { return kTop + chart_.height; }

  std::string axes() const {
    const double middle = (kTop + bottom()) / 2;
    std::string out;
    for_each_tick(chart_.y, [&](double tick, const std::string& label) {
      const double at = y(tick);
      out += chart_.lines.empty() ? segment(left_ - 5, at, left_, at, "stroke=\"#555555\"")
                                  : segment(left_, at, right(), at, "stroke=\"#e3e3e3\"");
      out += text(left_ - 9, at + 4, "text-anchor=\"end\"", label);
    });
    for_each_tick(chart_.x, [&](double tick, const std::string& label) {
      const double at = x(tick);
      if (!chart_.y.labels.empty()) out += segment(at, kTop, at, bottom(), "stroke=\"#e3e3e3\"");
      out += segment(at, bottom(), at, bottom() + 5, "stroke=\"#555555\"");
      out += text(at, bottom() + 20, "text-anchor=\"middle\"", label);
    });
    out += segment(left_, bottom(), right(), bottom(), "stroke=\"#555555\"");
    out += segment(left_, kTop, left_, bottom(), "stroke=\"#555555\"");
    out += text((left_ + right()) / 2, bottom() + 42, "text-anchor=\"middle\"", chart_.x.name);
    const std::string turned = fmt::format(
        "transform=\"rotate(-90 {0} {1})\" text-anchor=\"middle\"", kMargin + 12, middle);
    return out + text(kMargin + 12, middle, turned, chart_.y.name);
  }

  std::string boxes() const {
    std::string out;
    for (const Chart::Box& b : chart_.boxes) {
      const double x1 = x(b.x), x2 = x(b.x + b.width), y1 = y(b.y), y2 = y(b.y + b.height);
      const std::string hint = b.hint.empty() ? "" : "<title>" + escaped(b.hint) + "</title>";
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" stroke=\"#ffffff\" "
          "stroke-width=\"0.5\" {}{}\n",
          std::min(x1, x2), std::min(y1, y2), std::fabs(x2 - x1), std::fabs(y2 - y1),
          drawn(b.style), hint.empty() ? "/>" : ">" + hint + "</rect>");
      if (!b.label.empty() && label_fits(b.label, std::fabs(x2 - x1)))
        out += text((x1 + x2) / 2, (y1 + y2) / 2 + 3.5,
                    "text-anchor=\"middle\" font-size=\"10\" fill=\"#222222\"", b.label);
    }
    return out;
  }

  std::string lines() const {
    std::string out = fmt::format(
        "<clipPath id=\"plot\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n"
        "<g clip-path=\"url(#plot)\">\n",
        left_, kTop, chart_.width, chart_.height);
    for (const Chart::Line& line : chart_.lines) {
      std::string points;
      for (const auto& [at, value] : line.points) {
        // Limit the coordinates, because viewers reject very large ones. Points outside the plot
        // are clipped anyway.
        const double high = std::clamp(y(value), kTop - 1e4, bottom() + 1e4);
        points += fmt::format("{:.2f},{:.1f} ", x(at), high);
      }
      out += "<polyline points=\"" + points + "\" " + drawn(line.style) + "/>\n";
    }
    return out + "</g>\n";
  }

  std::string legend() const {
    const double left = right() + kBetween;
    double y = kTop + 12;
    std::string out;
    for (const auto& [style, name] : chart_.legend) {
      if (!style.colour.empty() && style.width > 0) {
        out += segment(left, y - 4, left + 24, y - 4, drawn(style));
      } else if (!style.colour.empty()) {
        out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" {}/>\n", left + 5,
                           y - 11, drawn(style));
      }
      out += text(left + (style.colour.empty() ? 0 : kName), y, "", name);
      y += kRow;
    }
    return out;
  }

 private:
  template <class Draw>
  static void for_each_tick(const Axis& axis, const Draw& draw) {
    const std::vector<double> ticks = ticks_of(axis);
    for (size_t i = 0; i < ticks.size(); ++i)
      draw(ticks[i], axis.labels.empty() ? fmt::format("{:g}", ticks[i]) : axis.labels[i]);
  }
  static double share(const Axis& a, double value) { return (value - a.low) / (a.high - a.low); }
  double x(double value) const { return left_ + chart_.width * share(chart_.x, value); }
  double y(double value) const { return bottom() - chart_.height * share(chart_.y, value); }

  const Chart& chart_;
  double left_ = 82;
};

}  // namespace

std::string line_colour(size_t index) {
  // This is the palette of Okabe and Ito.
  static constexpr std::array<const char*, 7> kColours = {
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
  return kColours[index % kColours.size()];
}

std::string area_colour(size_t index) {
  static constexpr std::array<const char*, 8> kFew = {"#8ecae6", "#f4a261", "#a3c585", "#e5989b",
                                                      "#ffe08a", "#b8a1d9", "#5fb3a3", "#c9ada7"};
  if (index < kFew.size()) return kFew[index];
  return fmt::format("hsl({:.0f},58%,{}%)", std::fmod(static_cast<double>(index) * 137.508, 360),
                     62 + index % 3 * 8);
}

Axis round_axis(const std::string& name, double low, double high) {
  const double step = round_step(high > low ? high - low : 1.0);
  const double begin = std::floor(low / step) * step;
  const double end = std::max(std::ceil(high / step) * step, begin + step);
  return {name, begin, end, multiples(step, begin, end)};
}

bool label_fits(const std::string& label, double width) {
  return kLabelCharacter * static_cast<double>(label.size()) + 2 <= width;
}

std::string Chart::svg() const {
  const Plot plot(*this);
  size_t longest = 0;
  for (const auto& entry : legend) longest = std::max(longest, entry.second.size());
  const double texts = std::max(kTitleCharacter * static_cast<double>(title.size()),
                                kCharacter * static_cast<double>(subtitle.size()));
  const double names = kName + kCharacter * static_cast<double>(longest);
  const double all_width = std::max(plot.right() + kBetween + names, kMargin + texts) + kMargin;
  const double all_height =
      kTop + std::max(height + kBottom, kRow * static_cast<double>(legend.size())) + 16;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, "
             "sans-serif\" font-size=\"12\" fill=\"#222222\">\n{2}"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             all_width, all_height, kDarkColours) +
         text(kMargin, 34, "font-size=\"17\" font-weight=\"600\"", title) +
         text(kMargin, 56, "font-size=\"13\" fill=\"#555555\"", subtitle) + plot.axes() +
         plot.boxes() + (lines.empty() ? "" : plot.lines()) + plot.legend() + "</svg>\n";
}

}  // namespace muonrt::tool
