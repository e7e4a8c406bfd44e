// Builds the mixed list. It determines which block of a persistent grid computes which pair, wide
// tile or square tile, and in which order.

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "base/error.hpp"
#include "cuda/symmetric/job_list.hpp"
#include "cuda/symmetric/triangle.hpp"

namespace muonrt::cuda {

namespace {

using Shapes = std::span<const SymmetricShape>;
using Jobs = std::vector<TileJob>;

// For one stage of the depth, the products of a cell take 512 clocks (small_jobs.cpp), which count
// as 7 units of time. An SM reads 56 bytes per clock, so the operands of a square off the diagonal,
// 32 KB per stage, take 8 units. The other tiles read less for each product.
constexpr int64_t kCellTime = 7, kSquareTime = 8;

// Grids without pairs are faster if no result is wider than this constant, because pairs and tiles
// on the diagonal of a matrix run at different times (MEASUREMENTS.md). This was measured for
// widths of 512 to 1,024, and also for a width of 1,280 with other lists of jobs. Dense results
// have no tiles on the diagonal, so they always use pairs.
constexpr int64_t kWidestWithoutPairs = 1280;

int64_t time_of(const TileJob& job, Shapes shapes) {
  const int64_t stages = stages_of(shapes[static_cast<size_t>(job.shape)].k);
  if (job.kind != JobKind::kSquare) return 2 * kCellTime * stages;
  const bool diagonal = job.row == job.col && shapes[static_cast<size_t>(job.shape)].cols == 0;
  return (diagonal ? kCellTime : kSquareTime) * stages;
}

/// Returns the time at which the last block finishes.
int64_t end_of(const JobList& list, Shapes shapes) {
  return busiest(list, [&](const TileJob& job) { return time_of(job, shapes); });
}

/// The work to distribute: pairs (represented by the job of their upper block) and jobs of a single
/// block.
struct BlockLoad {
  Jobs pairs, singles;
};

/// Adds the tiles of a square of 2 x 2 cells that is off the diagonal or in a dense result.
/// @param at            the first cell of the square.
/// @param cells, width  number of rows and columns of cells of the result.
void add_square(BlockLoad& work, TileJob at, int64_t cells, int64_t width) {
  const bool last_row = at.row + 1 == cells, last_col = at.col + 1 == width;
  at.kind = last_col ? JobKind::kSquare : last_row ? JobKind::kWide : JobKind::kPair;
  (at.kind == JobKind::kPair ? work.pairs : work.singles).push_back(at);
  ++at.row;
  if (last_col && !last_row) work.singles.push_back(at);
}

BlockLoad cut(Shapes shapes, int64_t rows) {
  BlockLoad work;
  for (const int32_t s : deepest_first(shapes)) {
    const SymmetricShape& shape = shapes[static_cast<size_t>(s)];
    const int64_t cells = cells_of(shape.n), width = cells_of(shape.cols);
    for (int64_t m = 0; shape.cols > 0 && m < shape.count; ++m)
      raster_rectangle((cells + 1) / 2, (width + 1) / 2, rows, [&](int64_t row, int64_t col) {
        add_square(work, tile_job(s, m, 2 * row, 2 * col, JobKind::kPair), cells, width);
      });
    if (shape.cols > 0) continue;
    for (int64_t m = 0; shape.slices > 1 && m < shape.count; ++m)
      raster(cells, rows, [&](int64_t row, int64_t col) {
        work.singles.push_back(tile_job(s, m, row, col, JobKind::kSquare));
      });
    for (int64_t m = 0; shape.slices == 1 && m < shape.count; ++m)
      raster((cells + 1) / 2, rows, [&](int64_t row, int64_t col) {
        const int64_t r = 2 * row, c = 2 * col;
        if (row != col) return add_square(work, tile_job(s, m, r, c, JobKind::kPair), cells, cells);
        const bool last = c + 1 == cells;  // the square contains only one column of cells
        work.singles.push_back(tile_job(s, m, r, c, last ? JobKind::kSquare : JobKind::kWide));
        if (!last) work.singles.push_back(tile_job(s, m, r + 1, c + 1, JobKind::kSquare));
      });
  }
  return work;
}

TileJob lower_of(TileJob pair) {
  ++pair.row;
  return pair;
}

/// A queue of indices, sorted by load and then by index.
class LeastLoaded {
 public:
  explicit LeastLoaded(const std::vector<int64_t>& loads) {
    for (size_t i = 0; i < loads.size(); ++i) queue_.push({loads[i], i});
  }
  int64_t load() const { return queue_.top().first; }
  /// Adds `cost` to the first index in the queue and returns this index.
  size_t give(int64_t cost) {
    auto [load, index] = queue_.top();
    queue_.pop();
    queue_.push({load + cost, index});
    return index;
  }

 private:
  using Entry = std::pair<int64_t, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

/// The pairs that are assigned to the first `open` clusters. `left` contains the pairs that would
/// end later than `bound`.
struct PairsDealt {
  std::vector<Jobs> of_cluster;
  std::vector<int64_t> loads;
  Jobs left;
};

PairsDealt deal_pairs(const Jobs& pairs, Shapes shapes, size_t open, int64_t bound) {
  PairsDealt out;
  out.of_cluster.resize(open);
  out.loads.resize(open);
  LeastLoaded least(out.loads);
  for (const TileJob& pair : pairs) {
    const int64_t cost = time_of(pair, shapes);
    if (least.load() + cost > bound) {
      out.left.push_back(pair);
      continue;
    }
    const size_t cluster = least.give(cost);
    out.of_cluster[cluster].push_back(pair);
    out.loads[cluster] += cost;
  }
  return out;
}

/// Like deal_pairs, but uses as few clusters as possible.
PairsDealt deal_to_few(const Jobs& pairs, Shapes shapes, size_t clusters, int64_t bound) {
  int64_t sum = 0;
  size_t too_deep = 0;
  for (const TileJob& pair : pairs) {
    const int64_t cost = time_of(pair, shapes);
    if (cost > bound) {
      ++too_deep;
    } else {
      sum += cost;
    }
  }
  auto open = std::clamp(static_cast<size_t>((sum + bound - 1) / bound), size_t{1}, clusters);
  PairsDealt out = deal_pairs(pairs, shapes, open, bound);
  while (out.left.size() > too_deep && open < clusters)
    out = deal_pairs(pairs, shapes, ++open, bound);
  out.of_cluster.resize(clusters);
  out.loads.resize(clusters);
  return out;
}

/// Assigns the same number of pairs to each cluster, regardless of their cost. If the last round is
/// incomplete, its pairs are not assigned.
PairsDealt deal_rounds(const Jobs& pairs, Shapes shapes, size_t clusters) {
  PairsDealt out;
  out.of_cluster.resize(clusters);
  out.loads.resize(clusters);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i >= pairs.size() / clusters * clusters) {
      out.left.push_back(pairs[i]);
      continue;
    }
    out.of_cluster[i % clusters].push_back(pairs[i]);
    out.loads[i % clusters] += time_of(pairs[i], shapes);
  }
  return out;
}

/// Returns the two wide jobs into which a pair is divided.
std::array<TileJob, 2> halves_of(const TileJob& pair) {
  std::array<TileJob, 2> out = {pair, lower_of(pair)};
  for (TileJob& half : out) half.kind = JobKind::kWide;
  return out;
}

Jobs with_halves(const Jobs& pairs, Jobs singles) {
  Jobs halves;
  for (const TileJob& pair : pairs)
    for (const TileJob& half : halves_of(pair)) halves.push_back(half);
  singles.insert(singles.begin(), halves.begin(), halves.end());
  return singles;
}

/// Divides each wide single-block job for which `choose` returns true into two squares.
template <class Choose>
Jobs with_cut(Jobs singles, const Choose& choose) {
  Jobs halves;
  for (TileJob& job : singles) {
    if (job.kind != JobKind::kWide || !choose(job)) continue;
    job.kind = JobKind::kSquare;
    halves.push_back(job);
    ++halves.back().col;
  }
  singles.insert(singles.end(), halves.begin(), halves.end());
  return singles;
}

bool is_wide(const TileJob& job) { return job.kind == JobKind::kWide; }

/// Divides the last wide jobs, which form an incomplete round, into squares.
Jobs with_last_cut(const Jobs& singles, size_t blocks) {
  size_t keep = static_cast<size_t>(std::count_if(singles.begin(), singles.end(), is_wide));
  keep = keep / blocks * blocks;
  return with_cut(singles, [&](const TileJob&) { return keep == 0 || keep-- == 0; });
}

/// The order of the single-block jobs.
enum class Order {
  kByMatrix,      // in the order of the pairs; the last squares, one for each block, are moved to
                  // the end
  kLongestFirst,  // the wide jobs of a shape come before its squares
};

Jobs ordered(Jobs singles, Shapes shapes, Order order, size_t blocks) {
  if (order == Order::kLongestFirst) {
    std::stable_sort(singles.begin(), singles.end(), [&](const TileJob& a, const TileJob& b) {
      return time_of(a, shapes) > time_of(b, shapes);
    });
    return singles;
  }
  std::vector<size_t> rank(shapes.size());
  size_t next = 0;
  for (const int32_t s : deepest_first(shapes)) rank[static_cast<size_t>(s)] = next++;
  const auto index = [&](const TileJob& job) {
    return std::pair{rank[static_cast<size_t>(job.shape)], job.matrix};
  };
  std::stable_sort(singles.begin(), singles.end(),
                   [&](const TileJob& a, const TileJob& b) { return index(a) < index(b); });
  Jobs last;
  for (size_t i = singles.size(); i-- > 0 && last.size() < blocks;) {
    if (is_wide(singles[i])) continue;
    last.push_back(singles[i]);
    singles[i].shape = -1;
  }
  std::erase_if(singles, [](const TileJob& job) { return job.shape < 0; });
  singles.insert(singles.end(), last.rbegin(), last.rend());
  return singles;
}

/// Returns a list in which each block processes its pairs before its other jobs.
JobList list_of(const std::vector<Jobs>& pairs_of_cluster, const std::vector<Jobs>& of_block) {
  JobList list;
  list.first.push_back(0);
  for (size_t b = 0; b < of_block.size(); ++b) {
    for (const TileJob& pair : pairs_of_cluster[b / 2])
      list.jobs.push_back(b % 2 == 0 ? pair : lower_of(pair));
    list.jobs.insert(list.jobs.end(), of_block[b].begin(), of_block[b].end());
    list.first.push_back(static_cast<int32_t>(list.jobs.size()));
  }
  return list;
}

/// Assigns each single-block job to the block with the least work.
JobList deal(const PairsDealt& pairs, const Jobs& singles, Shapes shapes) {
  std::vector<int64_t> loads(2 * pairs.loads.size());
  for (size_t b = 0; b < loads.size(); ++b) loads[b] = pairs.loads[b / 2];
  LeastLoaded least(loads);
  std::vector<Jobs> of_block(loads.size());
  for (const TileJob& single : singles)
    of_block[least.give(time_of(single, shapes))].push_back(single);
  return list_of(pairs.of_cluster, of_block);
}

/// Returns whether the makespan is so close to the bound that another attempt is not worth its
/// time.
bool is_near(int64_t makespan, int64_t bound) { return makespan <= bound + bound / 256; }

/// A distribution of the work. If two distributions take the same time, the distribution with more
/// pairs is better, because the two blocks of a pair share the operands that they read.
struct SharedPairs {
  JobList list;
  int64_t makespan = 0;
  size_t broken = 0;  // number of pairs that were divided

  bool is_better_than(const SharedPairs& other) const {
    return std::pair{makespan, broken} < std::pair{other.makespan, other.broken};
  }
};

/// Returns the best distribution of the single-block jobs for these pairs. Stops at the first
/// distribution whose makespan is near `bound` (is_near).
SharedPairs distribute(const PairsDealt& pairs, const BlockLoad& work, Shapes shapes,
                       int64_t bound) {
  const size_t blocks = 2 * pairs.loads.size();
  std::optional<SharedPairs> best;
  const auto offer = [&](const Jobs& singles) {
    for (const Order order : {Order::kByMatrix, Order::kLongestFirst}) {
      if (best && is_near(best->makespan, bound)) return;
      SharedPairs now{deal(pairs, ordered(singles, shapes, order, blocks), shapes), 0,
                      pairs.left.size()};
      now.makespan = end_of(now.list, shapes);
      if (!best || now.is_better_than(*best)) best = std::move(now);
    }
  };
  const Jobs whole = with_halves(pairs.left, work.singles);
  offer(whole);
  offer(with_last_cut(whole, blocks));
  offer(with_cut(whole, [&](const TileJob& job) { return time_of(job, shapes) > bound; }));
  return std::move(*best);
}

/// Returns a lower bound on the makespan that holds for any list.
int64_t least_makespan(const BlockLoad& work, Shapes shapes, int64_t blocks) {
  int64_t sum = 0, deepest = 0, unit = 0;  // all costs are multiples of `unit`
  for (const TileJob& pair : work.pairs) sum += 2 * time_of(pair, shapes);
  for (const TileJob& single : work.singles) sum += time_of(single, shapes);
  for (const SymmetricShape& s : shapes) {
    if (s.n == 0 || s.count == 0) continue;
    deepest = std::max<int64_t>(deepest, stages_of(s.k));
    unit = std::gcd(unit, int64_t{stages_of(s.k)});
  }
  unit = std::max(unit, int64_t{1});
  const int64_t mean = (sum + blocks * unit - 1) / (blocks * unit) * unit;
  return std::max({mean, kCellTime * deepest, int64_t{1}});
}

}  // namespace

JobList mixed_jobs(Shapes shapes, int blocks, const Sm90Tuning& tuning) {
  MUONRT_CHECK_INTERNAL(blocks >= 2 && blocks % 2 == 0, "a grid of ", blocks, " blocks");
  BlockLoad work = cut(shapes, tuning.raster);
  const bool wide = std::any_of(shapes.begin(), shapes.end(), [](const SymmetricShape& s) {
    return s.cols > 0 || s.n > kWidestWithoutPairs;
  });
  if (!tuning.pairs.value_or(wide)) work = {{}, with_halves(work.pairs, work.singles)};
  const auto clusters = static_cast<size_t>(blocks / 2);
  int64_t bound = least_makespan(work, shapes, blocks);
  const auto with_bound = [&](int64_t to) {
    return distribute(deal_to_few(work.pairs, shapes, clusters, to), work, shapes, to);
  };
  SharedPairs best = with_bound(bound);
  const auto offer = [&](SharedPairs now) {
    if (now.is_better_than(best)) best = std::move(now);
  };
  // If depths differ, clusters with different loads may leave gaps into which other jobs fit
  // better.
  if (!is_near(best.makespan, bound))
    offer(distribute(deal_rounds(work.pairs, shapes, clusters), work, shapes, bound));
  constexpr int kTries = 4;
  for (int i = 0; i < kTries && !is_near(best.makespan, bound); ++i) {
    const int64_t middle = bound + (best.makespan - bound) / 2;
    offer(with_bound(middle));
    if (best.makespan > middle) bound = middle;
  }
  if (best.broken > 0) offer(with_bound(best.makespan));  // may divide fewer pairs
  return std::move(best.list);
}

}  // namespace muonrt::cuda
