// Tests the job lists of the symmetric products. Each cell must be stored exactly once.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "cuda/symmetric/small_jobs.hpp"

using namespace muonrt::cuda;
using muonrt::Tiles;

namespace {

using Shapes = std::vector<SymmetricShape>;
constexpr int64_t kMaxN = 20000;

enum class List { kMixed, kPairs, kMedium, kSmall, kSmallWide };
constexpr int64_t cell_of(List list) {
  return list == List::kSmall || list == List::kSmallWide ? kSmallCell
         : list == List::kMedium                          ? kCell / 2
                                                          : kCell;
}

/// Counts how often each cell of each matrix is stored.
class Count {
 public:
  Count(const Shapes& shapes, List list) : list_(list) {
    for (const SymmetricShape& s : shapes) {
      const int64_t side = (s.n + cell_of(list) - 1) / cell_of(list);
      side_.push_back(side);
      batch_.push_back(s.count);
      times_.emplace_back(static_cast<size_t>(s.count * side * side));
    }
  }
  /// Counts the cells that a job stores.
  /// @return whether the job is inside its matrix.
  bool add(const TileJob& job) {
    const auto shape = static_cast<size_t>(job.shape);
    if (job.shape < 0 || shape >= side_.size() || job.matrix < 0 || job.matrix >= batch_[shape] ||
        job.row < 0 || (job.kind == JobKind::kMedium) != (list_ == List::kMedium))
      return false;
    const int64_t side = side_[shape];
    const auto store = [&](int64_t row, int64_t col) {
      ++times_[shape][static_cast<size_t>((job.matrix * side + row) * side + col)];
    };
    if (list_ == List::kMedium) {
      // A medium tile has two rows of three cells. Its last cells may be outside of the matrix.
      if (2 * job.row >= side || job.col < 2 * job.row || job.col >= side) return false;
      for (int64_t row = 2 * job.row; row < std::min(2 * job.row + 2l, side); ++row)
        for (int64_t col = job.col; col < std::min(job.col + 3l, side); ++col) store(row, col);
      return true;
    }
    const bool wide = job.kind != JobKind::kSquare, left = job.row <= job.col;
    // Only the left half of a wide job may be below the diagonal. This half is not stored.
    if (job.col + wide >= side || (!left && !(wide && job.row == job.col + 1))) return false;
    if (left) store(job.row, job.col);
    if (wide) store(job.row, job.col + 1);
    return true;
  }
  /// Returns whether each cell on or above the diagonal was stored once, and no other cell was
  /// stored. Medium tiles must also store the cell below the diagonal in each square of 2 x 2 cells
  /// on the diagonal.
  bool is_once() const {
    for (size_t shape = 0; shape < side_.size(); ++shape) {
      const int64_t side = side_[shape];
      for (int64_t at = 0; at < std::ssize(times_[shape]); ++at) {
        const int64_t row = at / side % side, col = at % side;
        const int64_t first = list_ == List::kMedium ? row / 2 * 2 : row;
        if (times_[shape][static_cast<size_t>(at)] != (col >= first)) return false;
      }
    }
    return true;
  }

 private:
  List list_;
  std::vector<int64_t> side_, batch_;
  std::vector<std::vector<int>> times_;
};

bool covers(const Shapes& shapes, List list, const std::vector<TileJob>& jobs) {
  Count count(shapes, list);
  return std::all_of(jobs.begin(), jobs.end(), [&](const TileJob& j) { return count.add(j); }) &&
         count.is_once();
}

/// Returns whether the jobs of dense results store each cell once, and no other cells.
bool covers_dense(const Shapes& shapes, const std::vector<TileJob>& jobs) {
  std::map<std::tuple<int32_t, int32_t, int64_t, int64_t>, int> times;
  for (const TileJob& job : jobs)
    for (int64_t col = job.col; col < job.col + cols_of(job.kind) / kCell; ++col)
      ++times[{job.shape, job.matrix, job.row, col}];
  int64_t cells = 0;
  for (size_t s = 0; s < shapes.size(); ++s)
    for (int32_t m = 0; m < shapes[s].count; ++m)
      for (int64_t row = 0; row < cells_of(shapes[s].n); ++row)
        for (int64_t col = 0; col < cells_of(shapes[s].cols); ++col, ++cells)
          if (times[{static_cast<int32_t>(s), m, row, col}] != 1) return false;
  return std::ssize(times) == cells;
}

/// Returns whether both blocks of a cluster begin with the same pairs, and whether their rows
/// differ by one in each pair.
bool pairs_match(const JobList& list) {
  for (size_t b = 0; b + 1 < list.first.size(); b += 2) {
    const TileJob* upper = list.jobs.data() + list.first[b];
    const TileJob* lower = list.jobs.data() + list.first[b + 1];
    const int32_t uppers = list.first[b + 1] - list.first[b];
    const int32_t lowers = list.first[b + 2] - list.first[b + 1];
    bool over = false;
    for (int32_t i = 0; i < std::max(uppers, lowers); ++i) {
      const bool u = i < uppers && upper[i].kind == JobKind::kPair;
      const bool l = i < lowers && lower[i].kind == JobKind::kPair;
      if (u != l || (u && over)) return false;
      over = over || !u;
      if (u && (upper[i].shape != lower[i].shape || upper[i].matrix != lower[i].matrix ||
                upper[i].col != lower[i].col || upper[i].row % 2 != 0 ||
                lower[i].row != upper[i].row + 1))
        return false;
    }
  }
  return true;
}

/// Returns whether the blocks' parts form the whole list, and whether the numbers of medium tiles
/// of any two blocks differ by at most one.
bool is_dealt(const JobList& list, int blocks, bool medium) {
  if (std::ssize(list.first) != blocks + 1 || list.first[0] != 0 ||
      list.first.back() != std::ssize(list.jobs))
    return false;
  const auto least = static_cast<int32_t>(list.jobs.size()) / blocks;
  for (size_t b = 0; medium && b + 1 < list.first.size(); ++b) {
    const int32_t mine = list.first[b + 1] - list.first[b];
    if (mine < least || mine > least + 1) return false;
  }
  return true;
}

/// Returns whether a list of this kind stores each cell once.
bool is_right(const Shapes& shapes, List list, int blocks) {
  if (list == List::kSmall || list == List::kSmallWide)
    return covers(shapes, list,
                  small_jobs(shapes, list == List::kSmall ? Tiles::kSmall : Tiles::kSmallWide));
  const bool medium = list == List::kMedium;
  const JobList jobs = medium ? medium_jobs(shapes, blocks)
                              : mixed_jobs(shapes, blocks, {.pairs = list == List::kPairs});
  return is_dealt(jobs, blocks, medium) && pairs_match(jobs) && covers(shapes, list, jobs.jobs);
}

void require_right(const Shapes& shapes, std::initializer_list<List> lists, int blocks) {
  for (const List list : lists) {
    CAPTURE(shapes[0].n, shapes[0].k, shapes[0].count, shapes.size(), static_cast<int>(list),
            blocks);
    REQUIRE(is_right(shapes, list, blocks));
  }
}

constexpr auto kPersistent = {List::kMixed, List::kPairs, List::kMedium};

}  // namespace

TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000", "[emulated]") {
  // Lists depend only on the number of cells.
  const int grids[] = {2, 66, 124, 132};
  for (int64_t cells = 1; cells <= cells_of(kMaxN); ++cells) {
    const int64_t n = cells * kCell - cells * 37 % kCell;
    require_right({{n, 64, 1}}, kPersistent, grids[cells % 4]);
    require_right({{n, 2048, 2}}, kPersistent, 132);
  }
  for (int64_t side = 1; side * kSmallCell < kMaxN + kSmallCell; ++side)
    require_right({{side * kSmallCell - side % kSmallCell, 4096, 1}},
                  {List::kSmall, List::kSmallWide}, 1);
}

TEST_CASE("symmetric jobs: each cell is stored once, for batches to 256", "[emulated]") {
  const int grids[] = {2, 124, 132};
  int64_t turn = 0;
  for (const int64_t batch : {2, 3, 4, 5, 7, 8, 31, 32, 33, 100, 127, 128, 255, 256})
    for (int64_t cells = 1; cells <= 14; ++cells) {
      const int64_t n = cells * kCell - turn % kCell;
      require_right({{n, 2048, batch}}, {List::kSmall, List::kSmallWide}, 1);
      require_right({{n, 2048, batch}}, kPersistent, grids[turn++ % 3]);
    }
}

TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000 and batch to 256",
          "[emulated][.full]") {
  for (int64_t cells = 1; cells <= cells_of(kMaxN); ++cells)
    for (int64_t batch = 1; batch <= 256; ++batch)
      require_right({{cells * kCell, 2048, batch}}, kPersistent, 132);
}

TEST_CASE("symmetric jobs: sliced results have squares only, each stored once", "[emulated]") {
  for (const int64_t n : {1, 64, 129, 256, 384})
    for (const int64_t batch : {1, 5, 37, 256})
      for (const int32_t slices : {2, 4}) {
        const Shapes shapes = {{n, 4096, batch, slices}};
        for (const int blocks : {2, 124, 132}) {
          require_right(shapes, {List::kMixed}, blocks);
          for (const TileJob& job : mixed_jobs(shapes, blocks).jobs)
            REQUIRE(job.kind == JobKind::kSquare);
        }
        require_right(shapes, {List::kSmallWide}, 1);
        for (const TileJob& job : small_jobs(shapes, Tiles::kSmallWide))
          REQUIRE(job.kind == JobKind::kSquare);
      }
}

TEST_CASE("symmetric jobs: each cell is stored once if shapes are mixed", "[emulated]") {
  const Shapes shapes = {{768, 2048, 5}, {4096, 1024, 1}, {200, 9000, 3},
                         {1, 1, 7},      {0, 5, 2},       {129, 64, 0}};
  for (const int blocks : {2, 132}) require_right(shapes, kPersistent, blocks);
  // The shapes with the largest depth come first.
  CHECK(small_jobs(shapes, Tiles::kSmall).front().shape == 2);
}

TEST_CASE("symmetric jobs: each cell of dense results is stored once, and no block ends late",
          "[emulated]") {
  std::vector<Shapes> lists = {{{2048, 2048, 9, 1, 7168}},
                               {{7168, 7168, 1, 1, 18432}, {2048, 2048, 9, 1, 7168}},
                               {{1, 1, 7, 1, 1}, {0, 5, 2, 1, 5}, {300, 300, 3, 1, 129}}};
  for (int64_t rows = 1; rows <= 9; ++rows)
    for (int64_t cols = 1; cols <= 9; ++cols)
      lists.push_back({{rows * kCell - 5, 700, 1 + (rows + cols) % 4, 1, cols * kCell - 9}});
  for (const Shapes& shapes : lists)
    for (const int blocks : {2, 12, 124, 132})
      for (const bool pairs : {true, false}) {
        CAPTURE(shapes[0].n, shapes[0].cols, shapes[0].count, blocks, pairs);
        const JobList list = mixed_jobs(shapes, blocks, {.pairs = pairs});
        REQUIRE((is_dealt(list, blocks, false) && pairs_match(list)));
        REQUIRE(covers_dense(shapes, list.jobs));
        int64_t cells = 0, deepest = 0;
        for (const SymmetricShape& s : shapes) {
          cells += s.count * cells_of(s.n) * cells_of(s.cols) * s.k;
          deepest = std::max(deepest, s.k);
        }
        // The bound is the same as in symmetric_order_test.
        const int64_t least = std::max(deepest, (cells + blocks - 1) / blocks);
        CHECK(makespan_of(list, shapes) <= least + least / 24 + 2 * deepest);
        const bool has_pairs = std::any_of(list.jobs.begin(), list.jobs.end(), [](const auto& job) {
          return job.kind == JobKind::kPair;
        });
        CHECK((pairs || !has_pairs));
      }
}

TEST_CASE("symmetric jobs: counted jobs begin in the order of the blocks", "[emulated]") {
  const Shapes shapes = {{700, 64, 3}, {300, 512, 5}};
  for (const int blocks : {2, 12, 132}) {
    const JobList list = mixed_jobs(shapes, blocks, {.pairs = false});
    const std::vector<TileJob> jobs = in_turn(list);
    REQUIRE(covers(shapes, List::kMixed, jobs));
    const auto same = [](const TileJob& a, const TileJob& b) {
      return a.shape == b.shape && a.matrix == b.matrix && a.row == b.row && a.col == b.col;
    };
    for (size_t b = 0; b < std::min(static_cast<size_t>(blocks), jobs.size()); ++b)
      if (list.first[b] < list.first[b + 1])
        CHECK(same(jobs[b], list.jobs[static_cast<size_t>(list.first[b])]));
  }
}

TEST_CASE("symmetric jobs: the check finds cells that are missing, stored twice or moved",
          "[emulated]") {
  const Shapes shapes = {{1500, 64, 3}};
  const auto check = [&](List list, const std::vector<TileJob>& jobs) {
    CHECK(covers(shapes, list, jobs));
    for (size_t i = 0; i < jobs.size(); i += 7) {
      std::vector<TileJob> missing = jobs, twice = jobs, moved = jobs, elsewhere = jobs;
      missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
      CHECK_FALSE(covers(shapes, list, missing));
      twice.push_back(twice[i]);
      CHECK_FALSE(covers(shapes, list, twice));
      moved[i].col = static_cast<int16_t>(jobs[i].col + (list == List::kMedium ? 3 : 1));
      CHECK_FALSE(covers(shapes, list, moved));
      elsewhere[i].matrix = (elsewhere[i].matrix + 1) % 3;
      CHECK_FALSE(covers(shapes, list, elsewhere));
    }
  };
  check(List::kPairs, mixed_jobs(shapes, 4, {.pairs = true}).jobs);
  check(List::kSmallWide, small_jobs(shapes, Tiles::kSmallWide));
  check(List::kMedium, medium_jobs(shapes, 4).jobs);
}
