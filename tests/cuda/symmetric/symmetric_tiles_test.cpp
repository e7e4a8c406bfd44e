// Products for sm_90a by tiles of the test's choice: exact on integers, and all with the same bits.

#include "cuda/symmetric/symmetric_tiles.hpp"

#include <catch2/catch.hpp>

#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

/// Requires that all cases of a sweep are exact by each of `tiles_for(case)`.
template <class TilesFor, class Note>
void require_exact(Sweep sweep, int64_t most_of_all, const TilesFor& tiles_for, const Note& note) {
  for (const SymmetricCase& c : drawn_cases(sweep, most_of_all)) {
    const std::vector<Tiles> all = tiles_for(c);
    if (all.empty()) continue;
    Machine machine(make_device(kProvider));
    const SymmetricNumbers numbers(c, static_cast<uint64_t>(c.n * 1000 + c.k));
    for (const Tiles tiles : all) {
      INFO(c.name() << ", tiles " << static_cast<int>(tiles));
      REQUIRE(wrong(machine, c, numbers, tiles) == 0);
      note(c, tiles);
    }
  }
}

}  // namespace

TEST_CASE(
    "symmetric tiles: exact on integers for every n to 192, batches 1 to 4, and for every n to 600 "
    "in one of them: small ones",
    "[emulated][every]") {
  Coverage met;
  require_exact(
      Sweep::kSmall, 192,
      [](const SymmetricCase& c) -> std::vector<Tiles> {
        if (c.n <= 192) return {Tiles::kSmall, Tiles::kSmallWide};
        return {draw(Sweep::kSmall, c.n, 0, 2) == 0 ? Tiles::kSmall : Tiles::kSmallWide};
      },
      [&](const SymmetricCase& c, Tiles tiles) {
        met.note({static_cast<int64_t>(depth_of(c)), epilogue_of(c), c.n > 192,
                  tiles == Tiles::kSmallWide});
      });
  CHECK(met.least(3 * kEpilogues * 2 * 2) >= 2);
}

TEST_CASE("symmetric tiles: the same of medium ones", "[emulated][every]") {
  Coverage met, widths;
  require_exact(
      Sweep::kMedium, 192, [](const SymmetricCase&) { return std::vector{Tiles::kMedium}; },
      [&](const SymmetricCase& c, Tiles) {
        const auto depth = static_cast<int64_t>(depth_of(c));
        met.note({depth, epilogue_of(c), c.count});
        // One to three halves of a row's last tile are inside.
        widths.note({depth, epilogue_of(c), (c.n + 63) / 64 % 3, c.n > 192});
      });
  CHECK(met.least(3 * kEpilogues * 4) >= 4);
  CHECK(widths.least(3 * kEpilogues * 3 * 2) >= 1);
}

TEST_CASE("symmetric tiles: the same of large ones where the choice is small ones",
          "[emulated][every]") {
  // What symmetric_test leaves out of its n and batches on this grid.
  int64_t seen = 0;
  require_exact(
      Sweep::kOp, 192,
      [](const SymmetricCase& c) -> std::vector<Tiles> {
        const std::vector<SymmetricShape> shapes = {{c.n, c.k, c.count, slices_of_sm90(c.n, c.k)}};
        if (tiles_of(shapes, mixed_jobs(shapes, 2), 2) == Tiles::kLarge) return {};
        return {Tiles::kLarge};
      },
      [&](const SymmetricCase&, Tiles) { ++seen; });
  CHECK(seen > 300);
}

TEST_CASE("symmetric tiles: exact on integers for every n to 600, batches 1 to 4", "[.full]") {
  const auto nothing = [](const SymmetricCase&, Tiles) {};
  require_exact(
      Sweep::kSmall, 600,
      [](const SymmetricCase&) {
        return std::vector{Tiles::kSmall, Tiles::kSmallWide};
      },
      nothing);
  require_exact(
      Sweep::kMedium, 600, [](const SymmetricCase&) { return std::vector{Tiles::kMedium}; },
      nothing);
}

TEST_CASE("symmetric tiles: exact on integers where the ring goes round", "[emulated]") {
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

TEST_CASE("symmetric tiles: exact on integers where the depth is cut", "[emulated]") {
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

TEST_CASE("symmetric tiles: exact on integers where D comes after any number of stages",
          "[emulated]") {
  for (int64_t stages = 1; stages <= 9; ++stages) {
    CAPTURE(stages);
    const int64_t k = stages * kStageDepth;
    const SymmetricCase with_d = {130, k - 3, 2, true, -2.0f, 3.0f, 7.0f};
    CHECK(wrong(with_d, Tiles::kSmall) == 0);
    CHECK(wrong(with_d, Tiles::kSmallWide) == 0);
    // Rows that begin a tile on the diagonal, after it and at the last column.
    CHECK(wrong({300, k - 3, 2, true, -2.0f, 3.0f, 7.0f}, Tiles::kMedium) == 0);
    CHECK(wrong({200, k, 1, true, 1.0f, -3.0f, 5.0f, true}, Tiles::kMedium) == 0);
    // As many in each of four slices.
    const SymmetricCase sliced = {130, 4 * k, 2, true, -2.0f, 3.0f, 7.0f};
    CHECK(slices_of_sm90(sliced.n, sliced.k, kMostSlices) == 4);
    CHECK(wrong(sliced, Tiles::kSmall, kMostSlices) == 0);
  }
}

TEST_CASE("symmetric tiles: bits do not depend on tiles, grid or batch", "[emulated]") {
  struct Way {
    Tiles tiles;
    int sms;
    bool alone = false, pairs = true;
  };
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{390, 150},
                             {300, 190},
                             {257, 300},
                             {130, 600},
                             {513, 70},
                             {450, 330}}) {
    RandomBatch batch(n, k);
    const auto first = batch.last(Tiles::kLarge, 4);
    CHECK(batch.is_symmetric(first));
    std::vector<Way> ways = {{Tiles::kLarge, 2},        {Tiles::kLarge, 4, false, false},
                             {Tiles::kLarge, 12, true}, {Tiles::kLarge, 16},
                             {Tiles::kSmall, 4},        {Tiles::kSmall, 4, true},
                             {Tiles::kSmallWide, 4}};
    if (n > 384)  // narrower ones are in slices here, which have no medium tiles
      for (const int sms : {2, 4, 12, 66})
        for (const bool alone : {false, true}) ways.push_back({Tiles::kMedium, sms, alone});
    for (const Way& way : ways) {
      CAPTURE(n, k, static_cast<int>(way.tiles), way.sms, way.alone, way.pairs);
      CHECK(batch.last(way.tiles, way.sms, way.alone, way.pairs) == first);
    }
  }
}
