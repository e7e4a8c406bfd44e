// The small tiles for sm_90a, the depth that is cut, and that both give the large tiles' bits.

#include <catch2/catch.hpp>
#include <tuple>

#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_products.hpp"
#include "cuda/symmetric_tiles.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

Tiles chosen(int64_t n, int64_t k, int64_t count, int blocks = 124) {
  const std::vector<SymmetricShape> shapes = {{n, k, count, slices_of_sm90(n, k)}};
  return tiles_of(shapes, mixed_jobs(shapes, blocks), blocks);
}

}  // namespace

TEST_CASE("symmetric small: each square of 64 is stored once, in every number of them",
          "[emulated]") {
  int64_t bad = 0;
  for (int64_t side = 1; side <= 64; ++side) {
    for (const Tiles tiles : {Tiles::kSmall, Tiles::kSmallWide}) {
      const std::vector<SymmetricShape> shapes = {
          {side * kSmallCell - side % 64, 64, 1 + side % 3}};
      std::vector<int> stored(static_cast<size_t>(side * side * shapes[0].count));
      for (const TileJob& job : small_jobs(shapes, tiles)) {
        bad += tiles == Tiles::kSmall && job.kind != JobKind::kSquare;
        for (int64_t col = job.col; col < job.col + (job.kind == JobKind::kWide ? 2 : 1); ++col) {
          bad += job.row > col || col >= side;
          ++stored.at(static_cast<size_t>((job.matrix * side + job.row) * side + col));
        }
      }
      for (size_t i = 0; i < stored.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / side % side;
        bad += stored[i] != (static_cast<int64_t>(i) % side >= row);
      }
    }
  }
  CHECK(bad == 0);
}

TEST_CASE("symmetric small: few and small matrices have small tiles, others large ones",
          "[emulated]") {
  CHECK(chosen(128, 4096, 1) == Tiles::kSmall);
  // The fastest on an H200, whose 132 SMs were all free.
  for (const int64_t n : {256, 384, 512, 640, 768, 896, 1024, 1152, 1280})
    CHECK(chosen(n, n, 1, 132) == Tiles::kSmall);
  CHECK(chosen(512, 512, 8, 132) == Tiles::kSmallWide);
  CHECK(chosen(768, 768, 6, 132) == Tiles::kSmallWide);
  CHECK(chosen(768, 3072, 6, 132) == Tiles::kLarge);
  CHECK(chosen(768, 768, 12, 132) == Tiles::kLarge);
  CHECK(chosen(2048, 2048, 1, 132) == Tiles::kMedium);
  CHECK(chosen(1536, 1536, 1) == Tiles::kLarge);
  CHECK(chosen(4096, 4096, 1) == Tiles::kLarge);
  CHECK(chosen(1024, 1024, 8) == Tiles::kLarge);
  CHECK(chosen(768, 2048, 128) == Tiles::kLarge);
  CHECK(chosen(128, 4096, 256) == Tiles::kLarge);
}

TEST_CASE("symmetric small: the cases for the large tiles of a GPU have pairs and slices",
          "[emulated]") {
  for (const int sms : {124, 132}) {
    int64_t in_pairs = 0, sliced = 0;
    for (const SymmetricCase& c : large_cases()) {
      CAPTURE(c.name(), sms);
      const std::vector<SymmetricShape> shapes = {{c.n, c.k, c.count, slices_of_sm90(c.n, c.k)}};
      const JobList list = mixed_jobs(shapes, sms, {.pairs = true});
      in_pairs += list.jobs[0].kind == JobKind::kPair;
      sliced += shapes[0].slices > 1;
    }
    CHECK(in_pairs == 2);
    CHECK(sliced == 1);
  }
}

TEST_CASE("symmetric small: a grid of two blocks has large tiles where a GPU has small ones",
          "[emulated]") {
  // What kAllButTwo is for; sizes of symmetric_test, on two blocks and on all SMs.
  for (const auto& [n, k, count] : {std::tuple<int64_t, int64_t, int64_t>(385, 40, 1),
                                    {390, 150, 1},
                                    {513, 42, 1},
                                    {600, 45, 4},
                                    {600, 330, 1},
                                    {370, 1100, 2}}) {
    CAPTURE(n, k, count);
    CHECK(chosen(n, k, count, 2) == Tiles::kLarge);
    CHECK(chosen(n, k, count, 132) != Tiles::kLarge);
  }
}

TEST_CASE(
    "symmetric small: the depth of narrow and deep results is cut, into equal parts of stages",
    "[emulated]") {
  CHECK(slices_of_sm90(128, 2048) == 4);
  CHECK(slices_of_sm90(384, 1024) == 2);
  CHECK(slices_of_sm90(384, 1023) == 1);
  CHECK(slices_of_sm90(385, 16384) == 1);
  int64_t bad = 0;
  for (int64_t k = 1024; k <= 20000; k += 7) {
    const int slices = slices_of_sm90(100, k), stages = stages_of(k);
    bad += slice_begin(stages, 0, slices) != 0 || slice_begin(stages, slices, slices) != stages;
    for (int s = 0; s < slices; ++s) {
      const int depth = slice_begin(stages, s + 1, slices) - slice_begin(stages, s, slices);
      bad += depth * kStageDepth < kShortestSlice90 || depth - stages / slices > 1;
    }
  }
  CHECK(bad == 0);
}

TEST_CASE(
    "symmetric small: exact on integers for every n to 192, batches 1 to 4, small tiles and wide, "
    "and for every n to 600 by one of them",
    "[emulated][every]") {
  Coverage met;
  for (const SymmetricCase& c : drawn_cases(Sweep::kSmall, 192)) {
    Machine machine(make_device(kProvider));
    const SymmetricNumbers numbers(c, static_cast<uint64_t>(c.n * 1000 + c.k));
    const auto only = draw(Sweep::kSmall, c.n, 0, 2) == 0 ? Tiles::kSmall : Tiles::kSmallWide;
    for (const Tiles tiles : {Tiles::kSmall, Tiles::kSmallWide}) {
      if (c.n > 192 && tiles != only) continue;
      INFO(c.name() << ", wide tiles: " << (tiles == Tiles::kSmallWide));
      REQUIRE(wrong(machine, c, numbers, tiles) == 0);
      met.note({static_cast<int64_t>(depth_of(c)), epilogue_of(c), c.n > 192,
                tiles == Tiles::kSmallWide});
    }
  }
  CHECK(met.least(3 * kEpilogues * 2 * 2) >= 2);
}

TEST_CASE("symmetric small: exact on integers for every n to 600, batches 1 to 4, all small tiles",
          "[.full]") {
  for (const SymmetricCase& c : drawn_cases(Sweep::kSmall)) {
    INFO(c.name());
    REQUIRE(wrong(c, Tiles::kSmall) == 0);
    REQUIRE(wrong(c, Tiles::kSmallWide) == 0);
  }
}

TEST_CASE("symmetric small: exact on integers by large tiles where the choice is small ones",
          "[emulated][every]") {
  // What symmetric_test leaves out of its n and batches on this grid.
  int64_t seen = 0;
  for (const SymmetricCase& c : drawn_cases(Sweep::kOp, 192)) {
    if (chosen(c.n, c.k, c.count, 2) == Tiles::kLarge) continue;
    INFO(c.name());
    REQUIRE(wrong(c, Tiles::kLarge) == 0);
    ++seen;
  }
  CHECK(seen > 300);
}

TEST_CASE("symmetric small: exact on integers where the ring goes round", "[emulated]") {
  for (const int64_t n : {64, 129, 200}) {
    for (const Tiles tiles : {Tiles::kSmall, Tiles::kSmallWide}) {
      for (int64_t epilogue = 0; epilogue < kEpilogues; ++epilogue) {
        const SymmetricCase c = case_of(n, 600 + n, 1, n + epilogue);
        INFO(c.name());
        CHECK(wrong(c, tiles) == 0);
      }
    }
  }
}

TEST_CASE("symmetric small: exact on integers where the depth is cut, all tiles", "[emulated]") {
  int64_t turn = 0;
  for (const int64_t n : {1, 8, 63, 64, 65, 100, 127, 128, 129, 191, 257, 384}) {
    for (const int64_t k : {130, 260, 700}) {
      const SymmetricCase c = case_of(n, k, 1 + (turn + turn / 3) % 3, turn);
      INFO(c.name());
      REQUIRE(slices_of_sm90(n, k, kMostSlices) == (k < 3 * kStageDepth ? 2 : 4));
      for (const Tiles tiles : {Tiles::kSmall, Tiles::kLarge})
        REQUIRE(wrong(c, tiles, kMostSlices) == 0);
      ++turn;
    }
    turn += 2;
  }
}

TEST_CASE("symmetric small: exact on integers where D comes behind any number of stages",
          "[emulated]") {
  for (int64_t stages = 1; stages <= 9; ++stages) {
    SymmetricCase c = {130, stages * kStageDepth - 3, 2, true, -2.0f, 3.0f, 7.0f};
    CAPTURE(stages);
    CHECK(wrong(c, Tiles::kSmall) == 0);
    CHECK(wrong(c, Tiles::kSmallWide) == 0);
    // As many in each of four slices.
    c.k = 4 * stages * kStageDepth;
    CHECK(slices_of_sm90(c.n, c.k, kMostSlices) == 4);
    CHECK(wrong(c, Tiles::kSmall, kMostSlices) == 0);
  }
}

TEST_CASE("symmetric small: bits follow from neither tiles, grid nor batch", "[emulated]") {
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>(390, 150), {300, 190}, {257, 300}, {130, 600}}) {
    CAPTURE(n, k);
    RandomBatch batch(n, k);
    const auto first = batch.last(Tiles::kLarge, 4);
    CHECK(batch.is_symmetric(first));
    CHECK(batch.last(Tiles::kLarge, 12, true) == first);
    CHECK(batch.last(Tiles::kLarge, 4, false, /*pairs=*/false) == first);
    CHECK(batch.last(Tiles::kSmall, 4) == first);
    CHECK(batch.last(Tiles::kSmall, 4, true) == first);
    CHECK(batch.last(Tiles::kSmallWide, 4) == first);
  }
}
