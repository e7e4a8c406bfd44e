#include "show/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace muonrt::tool {

namespace {

constexpr double kMargin = 24, kTop = 100, kBottom = 58, kLeft = 58, kBetween = 34, kRow = 20;
constexpr double kCharacter = 7.3;  // width of one, on the safe side; no font can be asked
constexpr double kTitleCharacter = 10;
constexpr int kTicks = 6;

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
  return s.width > 0
             ? fmt::format(
                   "fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
                   "stroke-linejoin=\"round\"{}",
                   s.colour, s.width, s.opacity, s.dashed ? " stroke-dasharray=\"6 3\"" : "")
             : fmt::format("fill=\"{}\" fill-opacity=\"{}\"", s.colour, s.opacity);
}

/// 1, 2, 2.5 or 5 times a power of ten, at least span / kTicks.
double round_step(double span) {
  const double raw = span / kTicks, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10.0 * power;
}

/// Multiples of `step` in [low, high].
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
  if (!axis.logarithmic) return multiples(round_step(high - low), low, high);
  std::vector<double> out;
  for (double at = low; at <= high * 1.0001; at *= 10) out.push_back(at);
  return out;
}

/// With as many decimals as the widest needs.
std::vector<std::string> names_of(const std::vector<double>& ticks, bool logarithmic) {
  std::vector<std::string> out;
  int decimals = 0;
  const auto whole = [&](double t) {
    const double scaled = t * std::pow(10.0, decimals);
    return std::fabs(scaled - std::round(scaled)) < 1e-3;
  };
  while (decimals < 9 && !std::all_of(ticks.begin(), ticks.end(), whole)) ++decimals;
  for (const double t : ticks) {
    out.push_back(logarithmic ? fmt::format("{:g}", t) : fmt::format("{:.{}f}", t, decimals));
  }
  return out;
}

/// A panel at its place in the picture.
class Plot {
 public:
  Plot(const Panel& panel, double left, size_t number)
      : panel_(panel), left_(left), number_(number), bottom_(kTop + panel.height) {}

  std::string svg() const {
    std::string out = text(left_, kTop - 14, "class=\"t\"", panel_.title) + axes();
    if (!panel_.boxes.empty()) out += "<g stroke=\"#ffffff\" stroke-width=\"0.5\">\n";
    for (const Panel::Box& b : panel_.boxes) {
      const double x1 = x(b.x), x2 = x(b.x + b.width), y1 = y(b.y), y2 = y(b.y + b.height);
      out +=
          fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}/>\n",
                      std::min(x1, x2), std::min(y1, y2), std::fabs(x2 - x1), std::fabs(y2 - y1),
                      drawn(b.style));
    }
    if (!panel_.boxes.empty()) out += "</g>\n";
    return panel_.lines.empty() ? out : out + lines();
  }

 private:
  static double share(const Axis& a, double value) {
    return a.logarithmic ? std::log(value / a.low) / std::log(a.high / a.low)
                         : (value - a.low) / (a.high - a.low);
  }
  double x(double value) const { return left_ + panel_.width * share(panel_.x, value); }
  double y(double value) const { return bottom_ - panel_.height * share(panel_.y, value); }

  std::string axes() const {
    const double right = left_ + panel_.width;
    std::string out;
    const std::vector<double> rows = ticks_of(panel_.y), columns = ticks_of(panel_.x);
    const auto row_names = names_of(rows, panel_.y.logarithmic);
    const auto column_names = names_of(columns, panel_.x.logarithmic);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double at = y(rows[i]);
      out += panel_.lines.empty() ? segment(left_ - 5, at, left_, at, "stroke=\"#555555\"")
                                  : segment(left_, at, right, at, "stroke=\"#e3e3e3\"");
      out += text(left_ - 9, at + 4, "text-anchor=\"end\"", row_names[i]);
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      const double at = x(columns[i]);
      out += segment(at, bottom_, at, bottom_ + 5, "stroke=\"#555555\"");
      out += text(at, bottom_ + 20, "text-anchor=\"middle\"", column_names[i]);
    }
    out += segment(left_, bottom_, right, bottom_, "stroke=\"#555555\"");
    out += segment(left_, kTop, left_, bottom_, "stroke=\"#555555\"");
    out += text((left_ + right) / 2, bottom_ + 42, "text-anchor=\"middle\"", panel_.x.name);
    out += fmt::format(
        "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}"
        "</text>\n",
        left_ - kLeft + 12, (kTop + bottom_) / 2, escaped(panel_.y.name));
    return out;
  }

  std::string lines() const {
    std::string out = fmt::format(
        "<clipPath id=\"plot{0}\"><rect x=\"{1}\" y=\"{2}\" width=\"{3}\" height=\"{4}\"/>"
        "</clipPath>\n<g clip-path=\"url(#plot{0})\">\n",
        number_, left_, kTop, panel_.width, panel_.height);
    for (const Panel::Line& line : panel_.lines) {
      std::string points;
      for (const auto& [at, value] : line.points) {
        // What lies far outside is clipped; numbers that no viewer takes would be no picture.
        const double high = std::clamp(y(value), kTop - 1e4, bottom_ + 1e4);
        points += fmt::format("{:.2f},{:.1f} ", x(at), high);
      }
      out += "<polyline points=\"" + points + "\" " + drawn(line.style) + "/>\n";
    }
    return out + "</g>\n";
  }

  const Panel& panel_;
  double left_;
  size_t number_;
  double bottom_;
};

std::string draw_legend(const std::vector<std::pair<Style, std::string>>& legend, double left) {
  std::string out;
  double y = kTop + 12;
  for (const auto& [style, name] : legend) {
    if (!style.colour.empty() && style.width > 0) {
      out += segment(left, y - 4, left + 24, y - 4, drawn(style));
    } else if (!style.colour.empty()) {
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" stroke=\"#888888\" {}/>\n",
          left + 5, y - 11, drawn(style));
    }
    out += text(left + (style.colour.empty() ? 0 : 32), y, "", name);
    y += kRow;
  }
  return out;
}

}  // namespace

std::string line_colour(size_t index) {
  // Okabe and Ito's.
  static constexpr std::array<const char*, 7> kColours = {
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
  return kColours[index % kColours.size()];
}

std::string area_colour(size_t index) {
  static constexpr std::array<const char*, 8> kFew = {"#8ecae6", "#f4a261", "#a3c585", "#e5989b",
                                                      "#ffe08a", "#b8a1d9", "#5fb3a3", "#c9ada7"};
  if (index < kFew.size()) return kFew[index];
  return fmt::format("hsl({:.0f},58%,{}%)", std::fmod(static_cast<double>(index) * 137.508, 360),
                     66 + index % 3 * 10);
}

Axis round_axis(const std::string& name, double low, double high) {
  const double step = round_step(high > low ? high - low : 1.0);
  const double begin = std::floor(low / step) * step;
  const double end = std::max(std::ceil(high / step) * step, begin + step);
  return {name, begin, end, false, multiples(step, begin, end)};
}

std::string Chart::svg() const {
  std::string plots;
  double right = kMargin, height = 0;
  for (const Panel& panel : panels) {
    plots += Plot(panel, right + kLeft, static_cast<size_t>(&panel - panels.data())).svg();
    right += kLeft + panel.width + kBetween;
    height = std::max(height, panel.height + kBottom);
  }
  size_t longest = 0;
  for (const auto& entry : legend) longest = std::max(longest, entry.second.size());
  const std::string key = draw_legend(legend, right);
  if (!legend.empty()) right += 32 + kCharacter * static_cast<double>(longest);
  const double title_width = std::max(kTitleCharacter * static_cast<double>(title.size()),
                                      kCharacter * static_cast<double>(subtitle.size()));
  const double width = std::max(right, kMargin + title_width) + kMargin;
  height = kTop + std::max(height, kRow * static_cast<double>(legend.size())) + 16;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, "
             "sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
             "<style>.t{{font-size:13px;fill:#555555}}</style>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             width, height) +
         text(kMargin, 34, "font-size=\"17\" font-weight=\"600\"", title) +
         text(kMargin, 56, "class=\"t\"", subtitle) + plots + key + "</svg>\n";
}

}  // namespace muonrt::tool
