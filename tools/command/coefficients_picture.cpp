#include "command/coefficients_picture.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "show/svg.hpp"

namespace muonrt::tool {

using svg::line, svg::text;

namespace {

constexpr double kWidth = 960, kHeight = 588, kTop = 156, kBottom = 524;
constexpr double kLow = -0.25, kHigh = 1.75;  // of the images that are shown
constexpr int kPoints = 3000;
// Okabe and Ito's colours, told apart with any kind of colour vision; dashed when they come round.
constexpr std::array<const char*, 7> kColours = {"#0072B2", "#56B4E9", "#009E73", "#D55E00",
                                                 "#CC79A7", "#E69F00", "#000000"};

/// A stretch of singular values on a scale of its own.
struct Panel {
  const char* name;
  double left, right, low, high;
  bool logarithmic;

  double share(double sigma) const {
    return logarithmic ? std::log(sigma / low) / std::log(high / low)
                       : (sigma - low) / (high - low);
  }
  double x(double sigma) const { return left + (right - left) * share(sigma); }
  double sigma(double share) const {
    return logarithmic ? low * std::pow(high / low, share) : low + (high - low) * share;
  }
};
constexpr Panel kWhole = {
    "singular value of the matrix divided by its norm", 66, 620, 1e-4, 1, true};
constexpr Panel kAbove = {"near 1: what rounding can reach", 672, 936, 0.95, 1.4, false};

std::string stroke_of(size_t list, double width) {
  return fmt::format("stroke=\"{}\" stroke-width=\"{}\"{}", kColours[list % kColours.size()], width,
                     list < kColours.size() ? "" : " stroke-dasharray=\"6 3\"");
}

double y_of(double value) { return kBottom - (kBottom - kTop) * (value - kLow) / (kHigh - kLow); }

std::string tick(const Panel& panel, double sigma, bool labelled) {
  const double x = panel.x(sigma);
  std::string out = line(x, kBottom, x, kBottom + (labelled ? 8 : 4), "stroke=\"#555555\"");
  if (labelled) {
    out += text(x, kBottom + 24, "text-anchor=\"middle\"", fmt::format("{:.4g}", sigma));
  }
  return out;
}

std::string axes(const Panel& panel) {
  std::string out;
  for (double value = -0.25; value < 1.8; value += 0.25) {
    const bool one = std::fabs(value - 1) < 1e-9;
    out += line(panel.left, y_of(value), panel.right, y_of(value),
                one ? "stroke=\"#777777\"" : "stroke=\"#e3e3e3\"");
    out += text(panel.left - 8, y_of(value) + 4, "text-anchor=\"end\" font-size=\"12\"",
                fmt::format("{:.2f}", value));
  }
  if (panel.logarithmic) {
    for (double decade = panel.low; decade < panel.high * 0.99; decade *= 10) {
      for (int digit = 1; digit < 10; ++digit) out += tick(panel, decade * digit, digit == 1);
    }
    out += tick(panel, panel.high, true);
  } else {
    out += line(panel.x(1), kTop, panel.x(1), kBottom, "stroke=\"#777777\"");
    for (int i = 10; i <= 14; ++i) out += tick(panel, i * 0.1, true);
  }
  out += line(panel.left, kBottom, panel.right, kBottom, "stroke=\"#555555\"");
  return out +
         text((panel.left + panel.right) / 2, kBottom + 46, "text-anchor=\"middle\"", panel.name);
}

std::string curve(const Panel& panel, const CoefficientList& list, const std::string& stroke) {
  std::string points;
  for (int i = 0; i <= kPoints; ++i) {
    const double sigma = panel.sigma(static_cast<double>(i) / kPoints);
    const double value = image(list, sigma);
    if (!std::isfinite(value)) break;
    points +=
        fmt::format("{:.2f},{:.1f} ", panel.x(sigma), y_of(std::fmax(-9, std::fmin(9, value))));
  }
  return svg::polyline(points,
                       "clip-path=\"url(#plot)\" stroke-opacity=\"0.85\" "
                       "stroke-linejoin=\"round\" " +
                           stroke);
}

}  // namespace

std::string coefficients_picture(const std::vector<NamedList>& lists) {
  std::string out = svg::begin(kWidth, kHeight, 13, "#222222");
  out += fmt::format(
      "<clipPath id=\"plot\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n",
      kWhole.left, kTop, kAbove.right - kWhole.left, kBottom - kTop);
  out += text(24, 32, "font-size=\"17\" font-weight=\"600\"",
              "What Newton-Schulz lists make of a singular value");
  out += text(24, 53, "fill=\"#666666\"",
              "1 is the aim; a curve that leaves the picture right of 1 has used up its headroom");
  out += axes(kWhole) + axes(kAbove);
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::string thin = stroke_of(i, 1.4);
    out += curve(kWhole, lists[i].list, thin) + curve(kAbove, lists[i].list, thin);
    const double x = 24 + 286.0 * static_cast<double>(i % 3),
                 y = 80 + 20.0 * static_cast<double>(i / 3);
    out += line(x, y - 4, x + 22, y - 4, stroke_of(i, 3));
    out += text(x + 30, y, "",
                fmt::format("{} ({} steps)", lists[i].name, lists[i].list.steps.size()));
  }
  return out + svg::kEnd;
}

}  // namespace muonrt::tool
