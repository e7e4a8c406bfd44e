// The job lists of the symmetric products: what is stored where, by whom, in which order.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "cuda/symmetric/small_jobs.hpp"

using namespace muonrt;
using namespace muonrt::cuda;

namespace {

/// How often each cell of each matrix is stored, straight or mirrored: 1 everywhere, or wrong.
class Covering {
 public:
  explicit Covering(const std::vector<SymmetricShape>& shapes) : shapes_(shapes) {
    for (const SymmetricShape& s : shapes) {
      const auto side = static_cast<size_t>(cells_of(s.n));
      stored_.emplace_back(side * side * static_cast<size_t>(s.count));
    }
  }
  void take(const TileJob& job) {
    const int width = job.kind == JobKind::kSquare ? 1 : 2;
    const int64_t side = cells_of(shapes_.at(static_cast<size_t>(job.shape)).n);
    for (int64_t c = job.col; c < job.col + width; ++c) {
      if (job.row < 0 || job.row >= side || c >= side) {
        ++outside_;
        continue;
      }
      const Stored how = stored_as(job.row, c);
      if (how != Stored::kNot) at(job, job.row, c) += 1;
      if (how == Stored::kBoth) at(job, c, job.row) += 1;
    }
  }
  bool is_exact() const {
    if (outside_ > 0) return false;
    for (const auto& counts : stored_)
      for (const uint8_t n : counts)
        if (n != 1) return false;
    return true;
  }

 private:
  uint8_t& at(const TileJob& job, int64_t row, int64_t col) {
    const auto shape = static_cast<size_t>(job.shape);
    const int64_t side = cells_of(shapes_[shape].n);
    return stored_[shape].at(static_cast<size_t>((job.matrix * side + row) * side + col));
  }
  std::vector<SymmetricShape> shapes_;
  std::vector<std::vector<uint8_t>> stored_;
  int64_t outside_ = 0;
};

bool squares_cover(const std::vector<SymmetricShape>& shapes) {
  Covering covering(shapes);
  int expected_slice = 0;
  for (const TileJob& job : square_jobs(shapes)) {
    const SymmetricShape& s = shapes[static_cast<size_t>(job.shape)];
    if (job.slice != expected_slice || job.kind != JobKind::kSquare) return false;
    if (job.slice == 0) covering.take(job);
    expected_slice = (job.slice + 1) % slices_of(s.n, s.k);
  }
  return expected_slice == 0 && covering.is_exact();
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

/// With pairs, and by the widest result.
bool mixed_covers(const std::vector<SymmetricShape>& shapes, int blocks) {
  const auto covers = [&](const JobList& list) {
    Covering covering(shapes);
    for (const TileJob& job : list.jobs) covering.take(job);
    return std::ssize(list.first) == blocks + 1 &&
           list.first.back() == static_cast<int32_t>(list.jobs.size()) && covering.is_exact() &&
           pairs_match(list);
  };
  return covers(mixed_jobs(shapes, blocks)) && covers(mixed_jobs(shapes, blocks, {.pairs = true}));
}

/// Whether lists of batches cover: much faster than Covering, by sums of random words that cells
/// above the diagonal have, a sum for each matrix. Two different collections of cells have the same
/// count and the same sum by chance alone, once in 2^64.
class CoveringBySums {
 public:
  explicit CoveringBySums(int64_t side) : side_(side), words_(static_cast<size_t>(side * side)) {
    std::mt19937_64 random(static_cast<uint64_t>(side));
    for (int64_t row = 0; row < side; ++row)
      for (int64_t col = row; col < side; ++col) whole_ += word(row, col) = random();
  }
  /// @param count  matrices.
  bool is_exact(const JobList& list, int64_t count) const {
    const auto matrices = static_cast<size_t>(count);
    std::vector<uint64_t> sums(matrices);
    std::vector<int64_t> cells(matrices);
    for (const TileJob& job : list.jobs) {
      const bool wide = job.kind != JobKind::kSquare;
      if (job.shape != 0 || job.matrix < 0 || job.matrix >= count || job.row < 0 ||
          job.col + wide >= side_)
        return false;
      const auto m = static_cast<size_t>(job.matrix);
      // Below the diagonal lies the left half of a wide job at most, which is not stored.
      const bool left = job.row <= job.col;
      if (!left && !(wide && job.row == job.col + 1)) return false;
      if (left) sums[m] += word(job.row, job.col);
      if (wide) sums[m] += word(job.row, job.col + 1);
      cells[m] += left + wide;
    }
    for (size_t m = 0; m < matrices; ++m)
      if (sums[m] != whole_ || cells[m] != side_ * (side_ + 1) / 2) return false;
    return true;
  }

 private:
  uint64_t& word(int64_t row, int64_t col) {
    return words_[static_cast<size_t>(row * side_ + col)];
  }
  uint64_t word(int64_t row, int64_t col) const {
    return words_[static_cast<size_t>(row * side_ + col)];
  }
  int64_t side_;
  std::vector<uint64_t> words_;
  uint64_t whole_ = 0;
};

bool equal(const JobList& a, const JobList& b) {
  return a.first == b.first && a.jobs.size() == b.jobs.size() &&
         std::memcmp(a.jobs.data(), b.jobs.data(), a.jobs.size() * sizeof(TileJob)) == 0;
}

/// Speed over a dense product at equal rate on 132 SMs: its cells over the busiest block's.
/// @param blocks  of the grid; fewer leave SMs to communication.
double gain(int64_t n, int64_t batch, int blocks = 132) {
  const std::vector<SymmetricShape> shapes = {{n, 1, batch}};
  const auto makespan = static_cast<double>(makespan_of(mixed_jobs(shapes, blocks), shapes));
  const auto side = static_cast<double>(n);
  return static_cast<double>(batch) * side * side / (128.0 * 128.0 * 132.0) / makespan;
}

}  // namespace

TEST_CASE("symmetric jobs: n elements lie in ceil(n / 128) cells, up to 20,000", "[emulated]") {
  int64_t wrong = 0;
  for (int64_t n = 1; n <= 20000; ++n) {
    const int64_t cells = cells_of(n);
    wrong += cells * kCell < n || (cells - 1) * kCell >= n;
  }
  CHECK(wrong == 0);
}

TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000", "[emulated]") {
  // Lists look at the number of cells alone, so one n for each number says it for all.
  for (int64_t cells = 1; cells <= cells_of(20000); ++cells) {
    CAPTURE(cells);
    REQUIRE(squares_cover({{cells * kCell, 64, 1}}));
    for (const int blocks : {2, 66, 124, 132, 148})
      REQUIRE(mixed_covers({{cells * kCell, 64, 1}}, blocks));
  }
}

TEST_CASE("symmetric jobs: each cell is stored once, for every batch to 256", "[emulated]") {
  for (int64_t batch = 1; batch <= 256; ++batch) {
    for (int64_t cells = 1; cells <= 14; ++cells) {
      CAPTURE(batch, cells);
      REQUIRE(squares_cover({{cells * kCell, 2048, batch}}));
      REQUIRE(mixed_covers({{cells * kCell, 2048, batch}}, 132));
    }
  }
}

TEST_CASE("symmetric jobs: each cell is stored once, for large n in batches", "[emulated]") {
  // Fewer matrices the larger they are, and a few drawn from all.
  std::mt19937_64 random(7);
  for (int64_t cells = 15; cells <= cells_of(20000); ++cells) {
    const int64_t drawn = cells % 16 == 0 ? 1 + static_cast<int64_t>(random() % 256) : 5;
    for (const int64_t batch : {int64_t{2}, int64_t{3}, drawn}) {
      CAPTURE(batch, cells);
      REQUIRE(mixed_covers({{cells * kCell, 2048, batch}}, 132));
    }
  }
}

TEST_CASE("symmetric jobs: n decides by its number of cells alone", "[emulated]") {
  // So one n for each number of cells says it for all, below and above.
  for (int64_t cells = 1; cells <= cells_of(20000); ++cells) {
    const auto list = [&](int64_t less) {
      return mixed_jobs(std::vector<SymmetricShape>{{cells * kCell - less, 64, 2}}, 132);
    };
    CAPTURE(cells);
    const JobList whole = list(0);
    for (const int64_t less : {int64_t{1}, cells % kCell, kCell - int64_t{1}})
      REQUIRE(equal(list(less), whole));
  }
}

// Each list is made by the function that makes it for the device, and walked once.
TEST_CASE("symmetric jobs: each cell is stored once, for every n to 20,000 and batch to 256",
          "[emulated][.full]") {
  for (int64_t cells = 1; cells <= cells_of(20000); ++cells) {
    const CoveringBySums covering(cells);
    for (int64_t batch = 1; batch <= 256; ++batch) {
      for (const Sm90Tuning& tuning : {Sm90Tuning{}, {.pairs = true}}) {
        const JobList list =
            mixed_jobs(std::vector<SymmetricShape>{{cells * kCell, 2048, batch}}, 132, tuning);
        CAPTURE(batch, cells);
        REQUIRE(covering.is_exact(list, batch));
        REQUIRE(pairs_match(list));
      }
    }
  }
}

// Each number of cells meets five batches or more, each batch three numbers of cells.
constexpr int64_t kApart = 48;
TEST_CASE("symmetric jobs: each cell is stored once along diagonals of all n and batches",
          "[emulated]") {
  for (int64_t cells = 1; cells <= cells_of(20000); ++cells) {
    const CoveringBySums covering(cells);
    for (int64_t batch = kApart - cells % kApart; batch <= 256; batch += kApart) {
      const std::vector<SymmetricShape> shapes = {{cells * kCell, 2048, batch}};
      // The grids of a whole H200, beside a communicator, and the smallest, in turn.
      const int turn = static_cast<int>((cells + batch) / kApart % 3);
      for (const Sm90Tuning& tuning : {Sm90Tuning{}, {.pairs = true}}) {
        const JobList list = mixed_jobs(shapes, turn == 0 ? 132 : turn == 1 ? 124 : 2, tuning);
        CAPTURE(batch, cells, turn);
        REQUIRE(covering.is_exact(list, batch));
        REQUIRE(pairs_match(list));
      }
    }
  }
}

TEST_CASE("symmetric jobs: each cell of narrow results in slices is stored once", "[emulated]") {
  constexpr int64_t kWidest = 3 * kCell;
  REQUIRE(slices_of_sm90(kWidest, 2048) == 4);
  REQUIRE(slices_of_sm90(kWidest + 1, 2048) == 1);
  for (int64_t cells = 1; cells <= cells_of(kWidest); ++cells) {
    const CoveringBySums covering(cells);
    for (int64_t batch = 1; batch <= 256; ++batch) {
      for (const int32_t slices : {2, 4}) {
        const std::vector<SymmetricShape> shapes = {{cells * kCell, 4096, batch, slices}};
        for (const int blocks : {2, 124, 132}) {
          const JobList list = mixed_jobs(shapes, blocks);
          CAPTURE(batch, cells, slices, blocks);
          REQUIRE(covering.is_exact(list, batch));
          for (const TileJob& job : list.jobs) REQUIRE(job.kind == JobKind::kSquare);
        }
      }
    }
  }
}

TEST_CASE("symmetric jobs: each small tile is stored once, for every n to 20,000", "[emulated]") {
  // Batches to 256 of as many tiles as the choice of tiles still looks at, or fewer.
  constexpr int64_t kMostTiles = 1 << 16;
  const auto covered = [](int64_t side, int64_t batch) {
    const CoveringBySums covering(side);
    for (const Tiles tiles : {Tiles::kSmall, Tiles::kSmallWide}) {
      for (const int32_t slices : {1, 4}) {
        const std::vector<SymmetricShape> shapes = {
            {side * kSmallCell - side % kSmallCell, 4096, batch, slices}};
        const JobList list = {small_jobs(shapes, tiles), {}};
        const bool only_squares = tiles == Tiles::kSmall || slices > 1;
        for (const TileJob& job : list.jobs)
          if (only_squares && job.kind != JobKind::kSquare) return false;
        if (!covering.is_exact(list, batch)) return false;
      }
    }
    return true;
  };
  const auto most = [](int64_t side) {
    return std::min<int64_t>(256, kMostTiles / (side * (side + 1) / 2));
  };
  for (int64_t side = 1; side * kSmallCell < 20000 + kSmallCell; ++side) {
    CAPTURE(side);
    REQUIRE(most(side) >= 1);
    for (const int64_t batch : {int64_t{1}, most(side)}) REQUIRE(covered(side, batch));
  }
  for (int64_t batch = 1; batch <= 256; ++batch) {
    CAPTURE(batch);
    for (const int64_t side : {int64_t{1}, 2 + batch % 20}) REQUIRE(covered(side, batch));
  }
}

TEST_CASE("symmetric jobs: the check by sums notices what it must", "[emulated]") {
  const std::vector<SymmetricShape> shapes = {{1500, 64, 3}};
  const CoveringBySums covering(cells_of(1500));
  const JobList list = mixed_jobs(shapes, 4);
  CHECK(covering.is_exact(list, 3));
  for (size_t i = 0; i < list.jobs.size(); i += 7) {
    JobList missing = list, twice = list, moved = list, elsewhere = list;
    missing.jobs.erase(missing.jobs.begin() + static_cast<ptrdiff_t>(i));
    CHECK_FALSE(covering.is_exact(missing, 3));
    twice.jobs.push_back(twice.jobs[i]);
    CHECK_FALSE(covering.is_exact(twice, 3));
    ++moved.jobs[i].col;
    CHECK_FALSE(covering.is_exact(moved, 3));
    elsewhere.jobs[i].matrix = (elsewhere.jobs[i].matrix + 1) % 3;
    CHECK_FALSE(covering.is_exact(elsewhere, 3));
  }
}

TEST_CASE("symmetric jobs: each cell is stored once where shapes are mixed", "[emulated]") {
  const std::vector<SymmetricShape> shapes = {{768, 2048, 5}, {4096, 1024, 1}, {200, 9000, 3},
                                              {1, 1, 7},      {0, 5, 2},       {129, 64, 0}};
  CHECK(mixed_covers(shapes, 132));
  CHECK(mixed_covers(shapes, 2));
  const std::vector<SymmetricShape> unsliced = {{1536, 2048, 5}, {4096, 1024, 1}, {2000, 9000, 3}};
  CHECK(squares_cover(unsliced));
  // The deepest come first.
  CHECK(square_jobs(unsliced).front().shape == 2);
}

TEST_CASE("symmetric jobs: the check of the covering notices what it must", "[emulated]") {
  const std::vector<SymmetricShape> shapes = {{1000, 64, 2}};
  const auto jobs = square_jobs(shapes);
  const auto exact = [&](const std::vector<TileJob>& list) {
    Covering covering(shapes);
    for (const TileJob& job : list) covering.take(job);
    return covering.is_exact();
  };
  CHECK(exact(jobs));
  auto missing = jobs;
  missing.pop_back();
  CHECK_FALSE(exact(missing));
  auto twice = jobs;
  twice.push_back(jobs[3]);
  CHECK_FALSE(exact(twice));
  auto outside = jobs;
  outside[0].col = 8;
  CHECK_FALSE(exact(outside));
}

TEST_CASE("symmetric jobs: the mixed list is as short as predicted", "[emulated]") {
  // Reference kernels, 4.3, "mixed list"; where 128 x 128 tiles alone are shorter, theirs.
  const auto near = [](double value) { return Approx(value).margin(0.006); };
  CHECK(gain(2048, 1) == near(0.97));
  CHECK(gain(2560, 1) == near(1.52));
  CHECK(gain(3072, 1) == near(1.45));
  CHECK(gain(4096, 1) == near(1.94));
  CHECK(gain(7168, 1) == near(1.83));
  CHECK(gain(8192, 1) == near(1.94));
  CHECK(gain(16384, 1) == near(1.97));
  CHECK(gain(1024, 8) == near(1.29));
  CHECK(gain(2048, 8) == near(1.72));
  CHECK(gain(4096, 8) == near(1.94));
  CHECK(gain(1024, 32) == near(1.72));
  CHECK(gain(768, 128) == near(1.66));
  CHECK(gain(2048, 128) == near(1.88));
  // With 8 SMs left to communication.
  CHECK(gain(2048, 1, 124) == near(0.97));
  CHECK(gain(4096, 1, 124) == near(1.55));
  CHECK(gain(8192, 1, 124) == near(1.82));
  CHECK(gain(16384, 1, 124) == near(1.85));
}

TEST_CASE("symmetric jobs: slices follow from the shape and are long", "[emulated]") {
  CHECK(slices_of(128, 2048) == 4);
  CHECK(slices_of(512, 1024) == 2);
  CHECK(slices_of(512, 511) == 1);
  CHECK(slices_of(4096, 16384) == 1);
  CHECK(slices_of(0, 16384) == 1);
  int64_t wrong = 0;
  for (int64_t n = 1; n <= 4096; n += 37) {
    for (int64_t k = 1; k <= 40000; k += 501) {
      const int slices = slices_of(n, k);
      wrong += slices < 1 || slices > 8 || (slices > 1 && k / slices < 512);
    }
  }
  CHECK(wrong == 0);
}
