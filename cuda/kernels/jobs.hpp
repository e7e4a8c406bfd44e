#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Distributes rectangles to thread blocks. This is plain C++ that is tested on the host.

namespace muonrt::cuda {

/// Number of elements of a job. It is large enough to justify starting a thread block, and small
/// enough for a short last wave. It is a multiple of kWidth, so that jobs begin at vectors.
constexpr int64_t kJobElements = 8192;
/// Side of the square that is transposed through shared memory.
constexpr int64_t kTile = 64;

/// A rectangle inside one item of a list. One thread block processes the rectangle.
struct Job {
  int32_t item;
  int32_t rows, cols;  // both are at least 1
  int32_t unused;
  int64_t row, col;  // position of the first element inside the item
};

/// Appends jobs of at most job_rows x job_cols elements that cover rows x cols without overlap.
inline void cut(int32_t item, int64_t rows, int64_t cols, int64_t job_rows, int64_t job_cols,
                std::vector<Job>& jobs) {
  for (int64_t row = 0; row < rows; row += job_rows) {
    const auto height = static_cast<int32_t>(std::min(job_rows, rows - row));
    for (int64_t col = 0; col < cols; col += job_cols)
      jobs.push_back(
          {item, height, static_cast<int32_t>(std::min(job_cols, cols - col)), 0, row, col});
  }
}

/// Divides rows x cols into jobs of whole rows, or of parts of rows if a row is longer than a job.
inline void cut_rows(int32_t item, int64_t rows, int64_t cols, std::vector<Job>& jobs) {
  if (rows == 0 || cols == 0) return;
  cut(item, rows, cols, std::max<int64_t>(1, kJobElements / cols), std::min(cols, kJobElements),
      jobs);
}

/// Divides a rows x cols matrix into jobs that each transpose two tiles, one below the other.
inline void cut_tiles(int32_t item, int64_t rows, int64_t cols, std::vector<Job>& jobs) {
  cut(item, rows, cols, 2 * kTile, kTile, jobs);
}

}  // namespace muonrt::cuda
