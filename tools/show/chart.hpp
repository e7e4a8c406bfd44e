#pragma once

#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// The style of a shape: a line with this width or, if the width is 0, a filled area.
struct Style {
  std::string colour;
  double width = 0;
  double opacity = 1;
};

/// Returns color `index` of a fixed list. Readers with any kind of color blindness can distinguish
/// the first seven colors.
std::string line_colour(size_t index);
/// Returns a color for areas under dark lines. Every index has a different color.
std::string area_colour(size_t index);

/// An axis from left to right or from bottom to top. If low > high, the axis is reversed.
struct Axis {
  std::string name;
  double low = 0, high = 1;
  std::vector<double> ticks = {};        // positions of the ticks; if empty, round numbers
  std::vector<std::string> labels = {};  // labels of the ticks; if empty, their numbers
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
  // a style without a color shows only the text
  std::vector<std::pair<Style, std::string>> legend = {};

  /// Returns an SVG document. Its background is white, or dark if the viewer prefers dark colors.
  std::string svg() const;
};

/// Returns whether a label fits into a box of this width, in pixels.
bool label_fits(const std::string& label, double width);

}  // namespace muonrt::tool
