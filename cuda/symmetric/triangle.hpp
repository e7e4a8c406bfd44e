#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/symmetric/job_list.hpp"

// What the lists of jobs have in common: the order of shapes, and of cells inside a triangle.

namespace muonrt::cuda {

constexpr int64_t kRasterRows = 8;  // rows whose squares are near in time, so that L2 has them

/// Calls visit(row, col) for 0 <= row <= col < side, column by column inside bands of rows.
template <class Visit>
void raster(int64_t side, const Visit& visit) {
  for (int64_t band = 0; band < side; band += kRasterRows)
    for (int64_t col = band; col < side; ++col)
      for (int64_t row = band; row < std::min(band + kRasterRows, col + 1); ++row) visit(row, col);
}

/// Numbers of the shapes; those of equal depth in the caller's order.
inline std::vector<int32_t> deepest_first(std::span<const SymmetricShape> shapes) {
  std::vector<int32_t> order(shapes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return shapes[static_cast<size_t>(a)].k > shapes[static_cast<size_t>(b)].k;
  });
  return order;
}

inline TileJob tile_job(int32_t shape, int64_t matrix, int64_t row, int64_t col, JobKind kind,
                        int slice = 0) {
  return {shape, static_cast<int32_t>(matrix), static_cast<int16_t>(row), static_cast<int16_t>(col),
          kind,  static_cast<int16_t>(slice)};
}

}  // namespace muonrt::cuda
