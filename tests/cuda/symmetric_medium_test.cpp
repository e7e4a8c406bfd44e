// The tiles of 128 x 192 for sm_90a: their lists, when they are taken, and that they give the bits
// of all others.

#include <catch2/catch.hpp>

#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_products.hpp"
#include "cuda/symmetric_tiles.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

constexpr int64_t kHalf = kCell / 2;

/// Squares of 64 of a list's results that are not computed by exactly one job where they lie on or
/// above the diagonal of cells, or by any below; jobs of wrong kinds and blocks without their turn.
int64_t bad_of(const std::vector<SymmetricShape>& shapes, int blocks) {
  const JobList list = medium_jobs(shapes, blocks);
  int64_t bad = list.first.size() != static_cast<size_t>(blocks) + 1 || list.first[0] != 0 ||
                list.first.back() != std::ssize(list.jobs);
  std::vector<std::vector<uint8_t>> stored;
  for (const SymmetricShape& s : shapes) {
    const int64_t side = (s.n + kHalf - 1) / kHalf;
    stored.emplace_back(static_cast<size_t>(side * side * s.count));
  }
  for (const TileJob& job : list.jobs) {
    const SymmetricShape& s = shapes[static_cast<size_t>(job.shape)];
    const int64_t side = (s.n + kHalf - 1) / kHalf;
    bad += job.kind != JobKind::kMedium || job.matrix < 0 || job.matrix >= s.count ||
           first_col_of(job) < job.row * kCell || first_col_of(job) >= s.n;
    for (int64_t row = 2 * job.row; row < std::min<int64_t>(2 * job.row + 2, side); ++row)
      for (int64_t col = job.col;
           col < std::min<int64_t>(job.col + cols_of(job.kind) / kHalf, side); ++col)
        ++stored[static_cast<size_t>(job.shape)]
                [static_cast<size_t>((job.matrix * side + row) * side + col)];
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t side = (shapes[i].n + kHalf - 1) / kHalf;
    for (size_t at = 0; at < stored[i].size(); ++at) {
      const int64_t row = static_cast<int64_t>(at) / side % side,
                    col = static_cast<int64_t>(at) % side;
      bad += stored[i][at] != (col >= row / 2 * 2);
    }
  }
  // No block has two jobs more than another.
  const auto least = static_cast<int32_t>(list.jobs.size()) / blocks;
  for (size_t b = 0; b + 1 < list.first.size(); ++b) {
    const int32_t mine = list.first[b + 1] - list.first[b];
    bad += mine < least || mine > least + 1;
  }
  return bad;
}

Tiles chosen(int64_t n, int64_t count, int sms) {
  const std::vector<SymmetricShape> shapes = {{n, n, count, 1}};
  return tiles_of(shapes, mixed_jobs(shapes, sms), sms);
}

}  // namespace

TEST_CASE("symmetric medium: each square of 64 is computed once, for every n to 20,000",
          "[emulated]") {
  // What decides is how many squares of 64 a row has.
  constexpr int64_t kMostSide = 313;
  const auto try_one = [](int64_t side, int64_t count, int64_t blocks) {
    CAPTURE(side, count, blocks);
    const int64_t n = side * kHalf - draw(Sweep::kMedium, side, 0, kHalf);
    REQUIRE(bad_of({{n, 64, count, 1}}, static_cast<int>(blocks)) == 0);
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
}

TEST_CASE("symmetric medium: each square of 64 is computed once in lists of several shapes",
          "[emulated]") {
  CHECK(bad_of({{300, 64, 3, 1}, {64, 500, 1, 1}, {2048, 100, 2, 1}, {193, 7, 5, 1}}, 124) == 0);
  CHECK(bad_of({{0, 64, 3, 1}, {100, 64, 0, 1}}, 4) == 0);
}

TEST_CASE("symmetric medium: shapes just larger than one round of squares have them",
          "[emulated]") {
  for (const int sms : {124, 132}) {
    CAPTURE(sms);
    for (const int64_t n : {2000, 2048, 2176, 2304}) CHECK(chosen(n, 1, sms) == Tiles::kMedium);
    for (const int64_t n : {1920, 2560, 4096, 8192}) CHECK(chosen(n, 1, sms) != Tiles::kMedium);
    CHECK(chosen(704, 8, sms) == Tiles::kMedium);
    CHECK(chosen(1024, 4, sms) == Tiles::kMedium);
    CHECK(chosen(1024, 8, sms) == Tiles::kLarge);
    CHECK(chosen(2048, 27, sms) == Tiles::kLarge);
  }
}

TEST_CASE(
    "symmetric medium: exact on integers for every n to 192, batches 1 to 4, and for every n to "
    "600 "
    "in one of them",
    "[emulated][every]") {
  Coverage met, widths;
  for (const SymmetricCase& c : drawn_cases(Sweep::kMedium, 192)) {
    INFO(c.name());
    REQUIRE(wrong(c, Tiles::kMedium) == 0);
    const auto depth = static_cast<int64_t>(depth_of(c)), side = (c.n + kHalf - 1) / kHalf;
    met.note({depth, epilogue_of(c), c.count});
    // Of a row's last tile one to three halves lie inside.
    widths.note({depth, epilogue_of(c), side % 3, c.n > 192});
  }
  CHECK(met.least(3 * kEpilogues * 4) >= 4);
  CHECK(widths.least(3 * kEpilogues * 3 * 2) >= 1);
}

TEST_CASE("symmetric medium: exact on integers for every n to 600, batches 1 to 4", "[.full]") {
  for (const SymmetricCase& c : drawn_cases(Sweep::kMedium)) {
    INFO(c.name());
    REQUIRE(wrong(c, Tiles::kMedium) == 0);
  }
}

TEST_CASE("symmetric medium: exact on integers where D comes behind any number of stages",
          "[emulated]") {
  for (int64_t stages = 1; stages <= 9; ++stages) {
    CAPTURE(stages);
    // Rows that begin a tile on the diagonal, behind it and at the last column.
    CHECK(wrong({300, stages * kStageDepth - 3, 2, true, -2.0f, 3.0f, 7.0f}, Tiles::kMedium) == 0);
    CHECK(wrong({200, stages * kStageDepth, 1, true, 1.0f, -3.0f, 5.0f, true}, Tiles::kMedium) ==
          0);
  }
}

TEST_CASE("symmetric medium: bits are those of the large tiles, for any grid and batch",
          "[emulated]") {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>(390, 150), {513, 70}, {450, 330}}) {
    CAPTURE(n, k);
    RandomBatch batch(n, k);
    const auto first = batch.last(Tiles::kLarge, 4);
    CHECK(batch.is_symmetric(first));
    CHECK(batch.last(Tiles::kLarge, 4, false, /*pairs=*/false) == first);
    for (const int sms : {2, 4, 12, 66}) {
      CHECK(batch.last(Tiles::kMedium, sms) == first);
      CHECK(batch.last(Tiles::kMedium, sms, true) == first);
    }
  }
}
