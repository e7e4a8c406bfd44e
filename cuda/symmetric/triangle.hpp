#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "cuda/symmetric/job_list.hpp"

// Functions that all kinds of job lists use. They define the order of shapes, and the order of
// cells inside a triangle or a rectangle.

namespace muonrt::cuda {

constexpr int64_t kRasterRows = 8;  // number of rows of a band; L2 keeps the operands of a band

/// Calls visit(row, col) for 0 <= row <= col < side, column by column inside bands of rows.
/// @param rows  number of rows of a band; 0 means kRasterRows.
template <class Visit>
void raster(int64_t side, int64_t rows, const Visit& visit) {
  if (rows == 0) rows = kRasterRows;
  for (int64_t band = 0; band < side; band += rows)
    for (int64_t col = band; col < side; ++col)
      for (int64_t row = band; row < std::min(band + rows, col + 1); ++row) visit(row, col);
}

/// Like raster, for 0 <= row < side and 0 <= col < cols.
template <class Visit>
void raster_rectangle(int64_t side, int64_t cols, int64_t rows, const Visit& visit) {
  if (rows == 0) rows = kRasterRows;
  for (int64_t band = 0; band < side; band += rows)
    for (int64_t col = 0; col < cols; ++col)
      for (int64_t row = band; row < std::min(band + rows, side); ++row) visit(row, col);
}

/// Sorts the jobs of one matrix, which are listed row by row, into the order of `raster`. The
/// widths of the tiles may differ.
/// @param rows  number of rows of a band; 0 keeps the order row by row.
inline void order_in_bands(std::span<TileJob> jobs, int64_t rows) {
  if (rows < 2) return;
  std::stable_sort(jobs.begin(), jobs.end(), [=](const TileJob& a, const TileJob& b) {
    return std::pair{a.row / rows, a.col} < std::pair{b.row / rows, b.col};
  });
}

/// Returns the indices of the shapes, deepest shapes first. Shapes of equal depth keep the caller's
/// order.
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
