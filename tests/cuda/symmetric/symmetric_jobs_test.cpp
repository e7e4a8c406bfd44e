// The job lists of the symmetric products: each cell is stored once, by whom, in which order; and
// which tiles a launch has.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_draws.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using cuda_test::draw;
using cuda_test::Sweep;

namespace {

using Shapes = std::vector<SymmetricShape>;
constexpr int64_t kMostN = 20000;

/// Random words for the cells of a result with `side` cells on a side, and the sum of those on and
/// above the diagonal; of medium tiles also of those below it in its squares of two cells.
struct Words {
  Words(int64_t cells, bool medium) : side(cells), words(static_cast<size_t>(cells * cells)) {
    std::mt19937_64 random(static_cast<uint64_t>(side));
    for (int64_t row = 0; row < side; ++row)
      for (int64_t col = medium ? row / 2 * 2 : row; col < side; ++col, ++count)
        sum += at(row, col) = random();
  }
  uint64_t& at(int64_t row, int64_t col) { return words[static_cast<size_t>(row * side + col)]; }

  int64_t side, count = 0;
  std::vector<uint64_t> words;
  uint64_t sum = 0;
};

/// Whether lists store each cell of each matrix once: by sums of random words, one sum for each
/// matrix. Two different collections of cells have the same count and the same sum with a
/// probability of 2^-64.
class Covering {
 public:
  /// @param cell  of the tiles: 128 of the large ones, else 64.
  Covering(const Shapes& shapes, int64_t cell, bool medium = false)
      : shapes_(shapes), medium_(medium) {
    for (const SymmetricShape& s : shapes) {
      const int64_t side = (s.n + cell - 1) / cell;
      auto& words = words_[side];
      if (!words) words = std::make_unique<Words>(side, medium);
      of_shape_.push_back(words.get());
    }
  }

  bool is_exact(const std::vector<TileJob>& jobs) const {
    std::vector<std::vector<uint64_t>> sums;
    std::vector<std::vector<int64_t>> counts;
    for (const SymmetricShape& s : shapes_) {
      sums.emplace_back(static_cast<size_t>(s.count));
      counts.emplace_back(static_cast<size_t>(s.count));
    }
    for (const TileJob& job : jobs) {
      const auto shape = static_cast<size_t>(job.shape);
      if (job.shape < 0 || shape >= shapes_.size() || job.matrix < 0 ||
          job.matrix >= shapes_[shape].count)
        return false;
      const auto m = static_cast<size_t>(job.matrix);
      if (!add(job, *of_shape_[shape], sums[shape][m], counts[shape][m])) return false;
    }
    for (size_t i = 0; i < shapes_.size(); ++i)
      for (size_t m = 0; m < sums[i].size(); ++m)
        if (sums[i][m] != of_shape_[i]->sum || counts[i][m] != of_shape_[i]->count) return false;
    return true;
  }

 private:
  bool add(const TileJob& job, Words& words, uint64_t& sum, int64_t& count) const {
    if (medium_ != (job.kind == JobKind::kMedium) || job.row < 0) return false;
    if (medium_) return add_medium(job, words, sum, count);
    const bool wide = job.kind != JobKind::kSquare, left = job.row <= job.col;
    if (job.col + wide >= words.side) return false;
    // Only the left half of a wide job may be below the diagonal, where it is not stored.
    if (!left && !(wide && job.row == job.col + 1)) return false;
    if (left) sum += words.at(job.row, job.col);
    if (wide) sum += words.at(job.row, job.col + 1);
    count += left + wide;
    return true;
  }
  /// Two rows of three cells, whose last ones may be outside.
  static bool add_medium(const TileJob& job, Words& words, uint64_t& sum, int64_t& count) {
    const int64_t first = 2 * job.row;
    if (first >= words.side || job.col < first || job.col >= words.side) return false;
    for (int64_t row = first; row < std::min(first + 2, words.side); ++row)
      for (int64_t col = job.col; col < std::min<int64_t>(job.col + 3, words.side); ++col, ++count)
        sum += words.at(row, col);
    return true;
  }

  Shapes shapes_;
  bool medium_;
  std::map<int64_t, std::unique_ptr<Words>> words_;
  std::vector<Words*> of_shape_;
};

/// Squares in slices: the slices of each come one after the other.
bool squares_cover(const Shapes& shapes) {
  std::vector<TileJob> whole;
  int expected_slice = 0;
  for (const TileJob& job : square_jobs(shapes)) {
    const SymmetricShape& s = shapes[static_cast<size_t>(job.shape)];
    if (job.slice != expected_slice || job.kind != JobKind::kSquare) return false;
    if (job.slice == 0) whole.push_back(job);
    expected_slice = (job.slice + 1) % slices_of(s.n, s.k);
  }
  return expected_slice == 0 && Covering(shapes, kCell).is_exact(whole);
}

/// Pairs come first in both blocks of a cluster, at the same places, with rows that differ by one.
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
      if (!u) continue;
      const bool match = upper[i].shape == lower[i].shape && upper[i].matrix == lower[i].matrix &&
                         upper[i].col == lower[i].col && upper[i].row % 2 == 0 &&
                         lower[i].row == upper[i].row + 1;
      if (!match) return false;
    }
  }
  return true;
}

/// By the widest result, and with pairs.
bool mixed_covers(const Covering& covering, const Shapes& shapes, int blocks) {
  for (const Sm90Tuning& tuning : {Sm90Tuning{}, {.pairs = true}}) {
    const JobList list = mixed_jobs(shapes, blocks, tuning);
    if (std::ssize(list.first) != blocks + 1 ||
        list.first.back() != static_cast<int32_t>(list.jobs.size()) ||
        !covering.is_exact(list.jobs) || !pairs_match(list))
      return false;
  }
  return true;
}
bool mixed_covers(const Shapes& shapes, int blocks) {
  return mixed_covers(Covering(shapes, kCell), shapes, blocks);
}

/// No block has two jobs more than another.
bool medium_covers(const Shapes& shapes, int blocks) {
  const JobList list = medium_jobs(shapes, blocks);
  if (std::ssize(list.first) != blocks + 1 || list.first[0] != 0 ||
      list.first.back() != std::ssize(list.jobs))
    return false;
  const auto least = static_cast<int32_t>(list.jobs.size()) / blocks;
  for (size_t b = 0; b + 1 < list.first.size(); ++b) {
    const int32_t mine = list.first[b + 1] - list.first[b];
    if (mine < least || mine > least + 1) return false;
  }
  return Covering(shapes, kCell / 2, true).is_exact(list.jobs);
}

bool small_covers(int64_t side, int64_t batch) {
  for (const Tiles tiles : {Tiles::kSmall, Tiles::kSmallWide}) {
    for (const int32_t slices : {1, 4}) {
      const Shapes shapes = {{side * kSmallCell - side % kSmallCell, 4096, batch, slices}};
      const std::vector<TileJob> jobs = small_jobs(shapes, tiles);
      if (tiles == Tiles::kSmall || slices > 1)
        for (const TileJob& job : jobs)
          if (job.kind != JobKind::kSquare) return false;
      if (!Covering(shapes, kSmallCell).is_exact(jobs)) return false;
    }
  }
  return true;
}

bool equal(const JobList& a, const JobList& b) {
  return a.first == b.first && a.jobs.size() == b.jobs.size() &&
         std::memcmp(a.jobs.data(), b.jobs.data(), a.jobs.size() * sizeof(TileJob)) == 0;
}

}  // namespace

TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000", "[emulated]") {
  // Lists depend on the number of cells only, so one n for each number is enough.
  for (int64_t cells = 1; cells <= cells_of(kMostN); ++cells) {
    CAPTURE(cells);
    REQUIRE(squares_cover({{cells * kCell, 64, 1}}));
    for (const int blocks : {2, 66, 124, 132, 148})
      REQUIRE(mixed_covers({{cells * kCell, 64, 1}}, blocks));
    const auto list = [&](int64_t less) {
      return mixed_jobs(Shapes{{cells * kCell - less, 64, 2}}, 132);
    };
    const JobList whole = list(0);
    for (const int64_t less : {int64_t{1}, cells % kCell, kCell - int64_t{1}}) {
      REQUIRE(cells_of(cells * kCell - less) == cells);
      REQUIRE(equal(list(less), whole));
    }
  }
}

TEST_CASE("symmetric jobs: each cell is stored once, for every batch to 256", "[emulated]") {
  for (int64_t batch = 1; batch <= 256; ++batch) {
    for (int64_t cells = 1; cells <= 14; ++cells) {
      CAPTURE(batch, cells);
      const Shapes shapes = {{cells * kCell, 2048, batch}};
      REQUIRE(squares_cover(shapes));
      REQUIRE(mixed_covers(shapes, 132));
    }
  }
  // Large n in small batches, and along diagonals of all n and batches: each number of cells has
  // five batches or more there, each batch three numbers of cells.
  constexpr int64_t kApart = 48;
  for (int64_t cells = 1; cells <= cells_of(kMostN); ++cells) {
    std::vector<int64_t> batches = {2, 3, 5};
    for (int64_t batch = kApart - cells % kApart; batch <= 256; batch += kApart)
      batches.push_back(batch);
    for (const int64_t batch : batches) {
      // The grids of a whole H200, of one with a communicator, and the smallest, in turn.
      const int turn = static_cast<int>((cells + batch) / kApart % 3);
      CAPTURE(batch, cells, turn);
      REQUIRE(mixed_covers({{cells * kCell, 2048, batch}}, turn == 0 ? 132 : turn == 1 ? 124 : 2));
    }
  }
}

TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000 and batch to 256",
          "[emulated][.full]") {
  for (int64_t cells = 1; cells <= cells_of(kMostN); ++cells) {
    for (int64_t batch = 1; batch <= 256; ++batch) {
      CAPTURE(batch, cells);
      REQUIRE(mixed_covers({{cells * kCell, 2048, batch}}, 132));
    }
  }
}

TEST_CASE("symmetric jobs: each cell of narrow results in slices is stored once", "[emulated]") {
  constexpr int64_t kWidest = 3 * kCell;
  REQUIRE(slices_of_sm90(kWidest, 2048) == 4);
  REQUIRE(slices_of_sm90(kWidest + 1, 2048) == 1);
  for (int64_t cells = 1; cells <= cells_of(kWidest); ++cells) {
    for (int64_t batch = 1; batch <= 256; ++batch) {
      for (const int32_t slices : {2, 4}) {
        const Shapes shapes = {{cells * kCell, 4096, batch, slices}};
        const Covering covering(shapes, kCell);
        for (const int blocks : {2, 124, 132}) {
          const JobList list = mixed_jobs(shapes, blocks);
          CAPTURE(batch, cells, slices, blocks);
          REQUIRE(covering.is_exact(list.jobs));
          for (const TileJob& job : list.jobs) REQUIRE(job.kind == JobKind::kSquare);
        }
      }
    }
  }
}

TEST_CASE("symmetric jobs: each small tile is stored once, for every n to 20,000", "[emulated]") {
  // Batches to 256 of as many tiles as the choice of tiles still considers, or fewer.
  constexpr int64_t kMostTiles = 1 << 16;
  const auto most = [](int64_t side) {
    return std::min<int64_t>(256, kMostTiles / (side * (side + 1) / 2));
  };
  for (int64_t side = 1; side * kSmallCell < kMostN + kSmallCell; ++side) {
    CAPTURE(side);
    REQUIRE(most(side) >= 1);
    for (const int64_t batch : {int64_t{1}, most(side)}) REQUIRE(small_covers(side, batch));
  }
  for (int64_t batch = 1; batch <= 256; ++batch) {
    CAPTURE(batch);
    for (const int64_t side : {int64_t{1}, 2 + batch % 20}) REQUIRE(small_covers(side, batch));
  }
}

TEST_CASE(
    "symmetric jobs: each square of 64 is computed once by medium tiles, for every n to 20,000",
    "[emulated]") {
  // The list depends on the number of squares of 64 in a row.
  constexpr int64_t kHalf = kCell / 2, kMostSide = 313;
  const auto try_one = [](int64_t side, int64_t count, int64_t blocks) {
    CAPTURE(side, count, blocks);
    const int64_t n = side * kHalf - draw(Sweep::kMedium, side, 0, kHalf);
    REQUIRE(medium_covers({{n, 64, count, 1}}, static_cast<int>(blocks)));
  };
  const auto even = [](int64_t side, int64_t purpose) {
    return 2 + 2 * draw(Sweep::kMedium, side, purpose, 80);
  };
  for (int64_t side = 1; side <= kMostSide; ++side) {
    for (const int64_t blocks : {int64_t{2}, int64_t{124}, int64_t{132}, even(side, 1)})
      try_one(side, 1 + draw(Sweep::kMedium, side * 256 + blocks, 2, 4), blocks);
  }
  // Batches to 256, of small results each, of larger ones some.
  for (int64_t count = 1; count <= 256; ++count) {
    try_one(1 + draw(Sweep::kMedium, count, 3, 12), count, even(count, 4));
    try_one(13 + draw(Sweep::kMedium, count, 5, 36), count, count % 2 == 0 ? 124 : 132);
  }
  for (const int64_t side : {100, 101, 102, 204, 311, 312, 313})
    try_one(side, 1000 / side * 5, even(side, 1));
  try_one(kMostSide, 256, 124);
  CHECK(medium_covers({{300, 64, 3, 1}, {64, 500, 1, 1}, {2048, 100, 2, 1}, {193, 7, 5, 1}}, 124));
  CHECK(medium_covers({{0, 64, 3, 1}, {100, 64, 0, 1}}, 4));
}

TEST_CASE("symmetric jobs: each cell is stored once where shapes are mixed", "[emulated]") {
  const Shapes shapes = {{768, 2048, 5}, {4096, 1024, 1}, {200, 9000, 3},
                         {1, 1, 7},      {0, 5, 2},       {129, 64, 0}};
  CHECK(mixed_covers(shapes, 132));
  CHECK(mixed_covers(shapes, 2));
  const Shapes unsliced = {{1536, 2048, 5}, {4096, 1024, 1}, {2000, 9000, 3}};
  CHECK(squares_cover(unsliced));
  // The deepest come first.
  CHECK(square_jobs(unsliced).front().shape == 2);
}

TEST_CASE("symmetric jobs: the check of the covering finds what is wrong", "[emulated]") {
  const Shapes shapes = {{1500, 64, 3}};
  const auto check = [&](const std::vector<TileJob>& jobs, const Covering& covering) {
    CHECK(covering.is_exact(jobs));
    for (size_t i = 0; i < jobs.size(); i += 7) {
      std::vector<TileJob> missing = jobs, twice = jobs, moved = jobs, elsewhere = jobs;
      missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
      CHECK_FALSE(covering.is_exact(missing));
      twice.push_back(twice[i]);
      CHECK_FALSE(covering.is_exact(twice));
      moved[i].col = static_cast<int16_t>(jobs[i].col + (jobs[i].kind == JobKind::kMedium ? 3 : 1));
      CHECK_FALSE(covering.is_exact(moved));
      elsewhere[i].matrix = (elsewhere[i].matrix + 1) % 3;
      CHECK_FALSE(covering.is_exact(elsewhere));
    }
  };
  check(square_jobs(shapes), Covering(shapes, kCell));
  check(mixed_jobs(shapes, 4).jobs, Covering(shapes, kCell));
  check(small_jobs(shapes, Tiles::kSmallWide), Covering(shapes, kSmallCell));
  check(medium_jobs(shapes, 4).jobs, Covering(shapes, kCell / 2, true));
}
