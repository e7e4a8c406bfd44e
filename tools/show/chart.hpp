#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// How something is drawn: as a line of this width, or as a filled area if the width is 0.
struct Style {
  std::string colour;
  double width = 0;
  double opacity = 1;
};

/// Returns colour `index` of a fixed list. Readers with any kind of colour blindness can
/// distinguish the first seven.
std::string line_colour(size_t index);
/// Returns a colour for areas under dark lines. Every index has a different colour.
std::string area_colour(size_t index);

/// An axis from left to right or from bottom to top. It is reversed if low > high.
struct Axis {
  std::string name;
  double low = 0, high = 1;
  std::vector<double> ticks = {};        // positions of the ticks; round numbers if empty
  std::vector<std::string> labels = {};  // labels of the ticks; their numbers if empty
};

/// Returns an axis that contains [low, high] and ends at round numbers. Both must be finite, and
/// low <= high.
Axis round_axis(const std::string& name, double low, double high);

/// A picture with a title, a plot, and a legend to the right of the plot. Parts outside the range
/// of the axes are not drawn. If the y axis has labels, vertical lines mark the ticks of the x
/// axis.
struct Chart {
  struct Line {
    Style style;
    std::vector<std::pair<double, double>> points;
  };
  struct Box {
    Style style;
    double x, y, width, height;  // in units of the axes
    std::string label = {};      // drawn inside the box if there is room for it
    std::string hint = {};       // shown when the pointer is over the box
  };

  std::string title, subtitle;
  double width = 600, height = 400;  // size of the plot, in pixels
  Axis x = {}, y = {};
  std::vector<Box> boxes = {};
  // if there are lines, a grid is drawn below them
  std::vector<Line> lines = {};
  // a style without colour shows only the text
  std::vector<std::pair<Style, std::string>> legend = {};

  /// Returns an SVG document with a white background, or a dark one if the reader prefers that.
  std::string svg() const;
};

/// Returns whether a label fits into a box of this width, in pixels.
bool label_fits(const std::string& label, double width);

}  // namespace muonrt::tool
