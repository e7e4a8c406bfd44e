#include "cuda/symmetric/job_list.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "cuda/symmetric/triangle.hpp"

namespace muonrt::cuda {

int slices_of(int64_t n, int64_t k, int tuned) {
  constexpr int64_t kWidest = 3 * kCell;
  if (tuned > 0) return std::min(tuned, stages_of(k) >= 4 ? 4 : stages_of(k) >= 2 ? 2 : 1);
  if (n > kWidest) return 1;
  return k >= 4 * kShortestSlice ? 4 : k >= 2 * kShortestSlice ? 2 : 1;
}

int64_t cost_of(const TileJob& job, std::span<const SymmetricShape> shapes) {
  return (job.kind == JobKind::kSquare ? 1 : 2) * shapes[static_cast<size_t>(job.shape)].k;
}

JobList medium_jobs(std::span<const SymmetricShape> shapes, int blocks, int64_t raster) {
  constexpr int64_t kSide = kCell / 2;
  std::vector<TileJob> jobs;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    MUONRT_CHECK_INTERNAL(shape.slices == 1, "medium tiles of ", shape.slices, " slices");
    const int64_t side = (shape.n + kSide - 1) / kSide;
    for (int64_t m = 0; m < shape.count; ++m) {
      const size_t first = jobs.size();
      for (int64_t row = 0; row < cells_of(shape.n); ++row)
        for (int64_t col = 2 * row; col < side; col += 3)
          jobs.push_back(tile_job(s, m, row, col, JobKind::kMedium));
      order_in_bands(std::span(jobs).subspan(first), raster);
    }
  }
  JobList list;
  list.first.push_back(0);
  const auto count = static_cast<size_t>(blocks);
  for (size_t b = 0; b < count; ++b) {
    for (size_t i = b; i < jobs.size(); i += count) list.jobs.push_back(jobs[i]);
    list.first.push_back(static_cast<int32_t>(list.jobs.size()));
  }
  return list;
}

std::vector<TileJob> in_turn(const JobList& list) {
  std::vector<TileJob> jobs;
  for (int32_t turn = 0; jobs.size() < list.jobs.size(); ++turn)
    for (size_t b = 0; b + 1 < list.first.size(); ++b)
      if (list.first[b] + turn < list.first[b + 1])
        jobs.push_back(list.jobs[static_cast<size_t>(list.first[b] + turn)]);
  return jobs;
}

int64_t makespan_of(const JobList& list, std::span<const SymmetricShape> shapes) {
  return busiest(list, [&](const TileJob& job) { return cost_of(job, shapes); });
}

}  // namespace muonrt::cuda
