#pragma once

#include <string>
#include <vector>

#include "algo/coefficients.hpp"

namespace muonrt::tool {

struct NamedList {
  std::string name;
  CoefficientList list;
};

/// The image of every singular value from 1e-4 to 1, and from 0.95 to 1.4 on a scale of its own,
/// one curve for each list, as an SVG document.
std::string coefficients_picture(const std::vector<NamedList>& lists);

}  // namespace muonrt::tool
