#pragma once

#include <string>

#include "layout/layout.hpp"

namespace muonrt::tool {

/// Draws the tensor as an SVG document. The tensor is shown as a matrix: if it has more than two
/// dimensions, the rows are dimension 0 and the columns all others. The colour of an element shows
/// which ranks hold it. Replicas share a colour, and the legend names the ranks. Throws
/// std::runtime_error if the tensor has no elements, or if its parts are too small to draw.
std::string layout_picture(const Layout& layout);

}  // namespace muonrt::tool
