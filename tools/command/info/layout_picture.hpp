#pragma once

#include <string>

#include "layout/layout.hpp"

namespace muonrt::tool {

/// Draws the tensor as a matrix in an SVG document. If the tensor has more than two dimensions,
/// dimension 0 forms the rows, and all others form the columns. The color of an element shows which
/// ranks hold it. Replicas have the same color, and the legend names the ranks. Throws
/// std::runtime_error if the tensor has no elements, or if its parts are too small to draw.
std::string layout_picture(const Layout& layout);

}  // namespace muonrt::tool
