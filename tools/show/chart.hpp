#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// How something is drawn: a line of this width, or a filled area if the width is 0.
struct Style {
  std::string colour;
  double width = 0;
  double opacity = 1;
  bool dashed = false;
};

/// Colour `index` of a fixed list; the first seven differ with any kind of colour vision.
std::string line_colour(size_t index);
/// The same for areas under dark lines; any number of different colours.
std::string area_colour(size_t index);

/// One direction of a panel, from left to right or from bottom to top. low > high turns it round.
struct Axis {
  std::string name;
  double low = 0, high = 1;
  bool logarithmic = false;        // 0 < low < high; ticks at powers of ten
  std::vector<double> ticks = {};  // empty: round numbers
};

/// An axis whose ends are round numbers, around [low, high]; finite, low <= high.
Axis round_axis(const std::string& name, double low, double high);

/// One plot. What leaves the range of the axes is not drawn.
struct Panel {
  struct Line {
    Style style;
    std::vector<std::pair<double, double>> points;
  };
  struct Box {
    Style style;
    double x, y, width, height;  // in units of the axes
  };

  std::string title;
  double width = 600, height = 400;  // of the plot, in pixels
  Axis x, y;
  std::vector<Box> boxes = {};
  std::vector<Line> lines = {};  // with lines comes a grid
};

/// A picture: title, panels side by side, and a legend to their right.
struct Chart {
  std::string title, subtitle;
  std::vector<Panel> panels;
  std::vector<std::pair<Style, std::string>> legend;  // a style without colour: text alone

  /// As an SVG document on a white ground.
  std::string svg() const;
};

}  // namespace muonrt::tool
