#pragma once

#include <string>

#include "layout/layout.hpp"

namespace muonrt::tool {

/// The tensor as a matrix (more than two dims: dim 0 by all others), every element in the colour of
/// the ranks that hold it, as an SVG document. Replicas share a colour; the legend names the
/// ranks. Throws std::runtime_error for a tensor without elements, or cut finer than can be drawn.
std::string layout_picture(const Layout& layout);

}  // namespace muonrt::tool
