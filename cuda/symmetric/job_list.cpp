#include "cuda/symmetric/job_list.hpp"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "base/error.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kRasterRows = 8;  // rows whose squares are near in time, so that L2 has them

// A depth is cut only where one matrix leaves most of a large GPU idle, into slices that are long
// beside what it costs to add them up.
constexpr int64_t kFewCells = 36, kShortestSlice = 512, kMostSlices = 8, kWantedJobs = 128;

/// Calls visit(row, col) for 0 <= row <= col < side, column by column inside bands of rows.
template <class Visit>
void raster(int64_t side, const Visit& visit) {
  for (int64_t band = 0; band < side; band += kRasterRows)
    for (int64_t col = band; col < side; ++col)
      for (int64_t row = band; row < std::min(band + kRasterRows, col + 1); ++row) visit(row, col);
}

std::vector<int32_t> deepest_first(std::span<const SymmetricShape> shapes) {
  std::vector<int32_t> order(shapes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return shapes[static_cast<size_t>(a)].k > shapes[static_cast<size_t>(b)].k;
  });
  return order;
}

TileJob job(int32_t shape, int64_t matrix, int64_t row, int64_t col, JobKind kind, int slice = 0) {
  return {shape, static_cast<int32_t>(matrix), static_cast<int16_t>(row), static_cast<int16_t>(col),
          kind,  static_cast<int16_t>(slice)};
}

/// What is shared out: pairs, by their upper block, and jobs of one block.
struct Work {
  std::vector<TileJob> pairs, singles;
};

Work cut(std::span<const SymmetricShape> shapes) {
  Work work;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    const int64_t cells = cells_of(shape.n);
    for (int64_t m = 0; shape.slices > 1 && m < shape.count; ++m)
      raster(cells, [&](int64_t row, int64_t col) {
        work.singles.push_back(job(s, m, row, col, JobKind::kSquare));
      });
    for (int64_t m = 0; shape.slices == 1 && m < shape.count; ++m)
      raster((cells + 1) / 2, [&](int64_t row, int64_t col) {
        const int64_t r = 2 * row, c = 2 * col;
        const bool last = c + 1 == cells;  // a column of squares that is one cell wide
        if (row == col) {
          work.singles.push_back(job(s, m, r, c, last ? JobKind::kSquare : JobKind::kWide));
          if (!last) work.singles.push_back(job(s, m, r + 1, c + 1, JobKind::kSquare));
        } else if (last) {
          work.singles.push_back(job(s, m, r, c, JobKind::kSquare));
          work.singles.push_back(job(s, m, r + 1, c, JobKind::kSquare));
        } else {
          work.pairs.push_back(job(s, m, r, c, JobKind::kPair));
        }
      });
  }
  return work;
}

/// The wide jobs that fill no whole round become two squares each. @return  whether there are any.
bool break_last_wide(std::vector<TileJob>& singles, size_t blocks) {
  const auto is_wide = [](const TileJob& j) { return j.kind == JobKind::kWide; };
  const auto wide = static_cast<size_t>(std::count_if(singles.begin(), singles.end(), is_wide));
  size_t keep = wide / blocks * blocks;
  std::vector<TileJob> halves;
  for (TileJob& j : singles) {
    if (!is_wide(j) || (keep > 0 && keep--)) continue;
    j.kind = JobKind::kSquare;
    halves.push_back(j);
    ++halves.back().col;
  }
  singles.insert(singles.end(), halves.begin(), halves.end());
  return !halves.empty();
}

TileJob lower_of(TileJob pair) {
  ++pair.row;
  return pair;
}

/// The pairs that fill no whole round become wide jobs.
void break_last_round(Work& work, size_t clusters) {
  const size_t whole = work.pairs.size() / clusters * clusters;
  std::vector<TileJob> broken;
  for (size_t i = whole; i < work.pairs.size(); ++i) {
    for (TileJob half : {work.pairs[i], lower_of(work.pairs[i])}) {
      half.kind = JobKind::kWide;
      broken.push_back(half);
    }
  }
  work.pairs.resize(whole);
  work.singles.insert(work.singles.begin(), broken.begin(), broken.end());
}

/// Whole rounds of pairs to the clusters, then the singles to the block with the least work.
JobList deal(Work work, std::span<const SymmetricShape> shapes, size_t count) {
  std::vector<std::vector<TileJob>> mine(count);
  std::vector<int64_t> load(count);
  for (size_t i = 0; i < work.pairs.size(); ++i) {
    const size_t block = 2 * (i % (count / 2));
    mine[block].push_back(work.pairs[i]);
    mine[block + 1].push_back(lower_of(work.pairs[i]));
    for (const size_t b : {block, block + 1}) load[b] += cost_of(work.pairs[i], shapes);
  }
  std::stable_sort(
      work.singles.begin(), work.singles.end(),
      [&](const TileJob& a, const TileJob& b) { return cost_of(a, shapes) > cost_of(b, shapes); });
  using Entry = std::pair<int64_t, size_t>;  // load, block
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> least;
  for (size_t b = 0; b < count; ++b) least.push({load[b], b});
  for (const TileJob& single : work.singles) {
    auto [so_far, block] = least.top();
    least.pop();
    mine[block].push_back(single);
    least.push({so_far + cost_of(single, shapes), block});
  }
  JobList list;
  list.first.push_back(0);
  for (const auto& jobs : mine) {
    list.jobs.insert(list.jobs.end(), jobs.begin(), jobs.end());
    list.first.push_back(static_cast<int32_t>(list.jobs.size()));
  }
  return list;
}

}  // namespace

int slices_of(int64_t n, int64_t k) {
  const int64_t side = cells_of(n), cells = side * (side + 1) / 2;
  if (cells == 0 || cells > kFewCells) return 1;
  return static_cast<int>(
      std::clamp(std::min(kWantedJobs / cells, k / kShortestSlice), int64_t{1}, kMostSlices));
}

int slices_of_sm90(int64_t n, int64_t k, int64_t shortest) {
  constexpr int64_t kWidest = 3 * kCell;
  if (n > kWidest) return 1;
  return k >= 4 * shortest ? 4 : k >= 2 * shortest ? 2 : 1;
}

std::vector<TileJob> square_jobs(std::span<const SymmetricShape> shapes) {
  std::vector<TileJob> jobs;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    const int slices = slices_of(shape.n, shape.k);
    for (int64_t m = 0; m < shape.count; ++m)
      raster(cells_of(shape.n), [&](int64_t row, int64_t col) {
        for (int slice = 0; slice < slices; ++slice)
          jobs.push_back(job(s, m, row, col, JobKind::kSquare, slice));
      });
  }
  return jobs;
}

int64_t cost_of(const TileJob& job, std::span<const SymmetricShape> shapes) {
  return (job.kind == JobKind::kSquare ? 1 : 2) * shapes[static_cast<size_t>(job.shape)].k;
}

JobList mixed_jobs(std::span<const SymmetricShape> shapes, int blocks) {
  MUONRT_CHECK_INTERNAL(blocks >= 2 && blocks % 2 == 0, "a grid of ", blocks, " blocks");
  const auto count = static_cast<size_t>(blocks);
  Work work = cut(shapes);
  break_last_round(work, count / 2);
  JobList list = deal(work, shapes, count);
  if (!break_last_wide(work.singles, count)) return list;
  JobList finer = deal(std::move(work), shapes, count);
  return makespan_of(finer, shapes) < makespan_of(list, shapes) ? finer : list;
}

JobList medium_jobs(std::span<const SymmetricShape> shapes, int blocks) {
  constexpr int64_t kSide = kCell / 2;
  std::vector<TileJob> jobs;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    MUONRT_CHECK_INTERNAL(shape.slices == 1, "medium tiles of ", shape.slices, " slices");
    const int64_t side = (shape.n + kSide - 1) / kSide;
    for (int64_t m = 0; m < shape.count; ++m)
      for (int64_t row = 0; row < cells_of(shape.n); ++row)
        for (int64_t col = 2 * row; col < side; col += 3)
          jobs.push_back(job(s, m, row, col, JobKind::kMedium));
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

int64_t makespan_of(const JobList& list, std::span<const SymmetricShape> shapes) {
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < list.first.size(); ++b) {
    int64_t sum = 0;
    for (int32_t i = list.first[b]; i < list.first[b + 1]; ++i)
      sum += cost_of(list.jobs[static_cast<size_t>(i)], shapes);
    longest = std::max(longest, sum);
  }
  return longest;
}

}  // namespace muonrt::cuda
