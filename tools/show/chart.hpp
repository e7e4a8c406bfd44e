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
};

/// Colour `index` of a fixed list; the first seven differ with any kind of colour vision.
std::string line_colour(size_t index);
/// The same for areas under dark lines; any number of different colours.
std::string area_colour(size_t index);

/// From left to right or from bottom to top; low > high reverses the direction.
struct Axis {
  std::string name;
  double low = 0, high = 1;
  std::vector<double> ticks = {};        // empty: round numbers
  std::vector<std::string> labels = {};  // of the ticks; empty: their numbers
};

/// An axis whose ends are round numbers, around [low, high]; finite, low <= high.
Axis round_axis(const std::string& name, double low, double high);

/// A picture: title, a plot, and a legend to its right. What leaves the range of the axes is not
/// drawn. If the y axis has labels, vertical lines mark the ticks of the x axis.
struct Chart {
  struct Line {
    Style style;
    std::vector<std::pair<double, double>> points;
  };
  struct Box {
    Style style;
    double x, y, width, height;  // in units of the axes
    std::string label = {};      // drawn inside if there is room for it
    std::string hint = {};       // shown when the pointer is over the box
  };

  std::string title, subtitle;
  double width = 600, height = 400;  // of the plot, in pixels
  Axis x = {}, y = {};
  std::vector<Box> boxes = {};
  std::vector<Line> lines = {};                            // a grid is drawn below the lines
  std::vector<std::pair<Style, std::string>> legend = {};  // a style without colour: only text

  /// As an SVG document on a white ground, or a dark one if the reader prefers that.
  std::string svg() const;
};

/// Whether a label fits into a box of this width, in pixels.
bool label_fits(const std::string& label, double width);

}  // namespace muonrt::tool
