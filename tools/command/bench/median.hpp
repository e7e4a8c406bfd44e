#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace muonrt::tool {

/// Of at least one value.
inline double median_of(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  const size_t half = list.size() / 2;
  return list.size() % 2 == 1 ? list[half] : (list[half - 1] + list[half]) / 2;
}

}  // namespace muonrt::tool
