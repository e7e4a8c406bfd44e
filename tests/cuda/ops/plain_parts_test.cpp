// The parts of cuda/ that are plain C++: which block does what, how elements are read, the norm's
// tree and scale.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/extremes.hpp"
#include "cuda/kernels/items.hpp"
#include "cuda/kernels/norm_tree.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace muonrt::cuda;

TEST_CASE("cuda jobs: every element of a rectangle is in one job", "[emulated]") {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>(1, 1),
                                   {1, 8193},
                                   {3, 20000},
                                   {8193, 1},
                                   {100, 77},
                                   {64, 64},
                                   {65, 129},
                                   {2, 8192}}) {
    for (const bool tiles : {false, true}) {
      std::vector<Job> jobs;
      if (tiles) {
        cut_tiles(5, rows, cols, jobs);
      } else {
        cut_rows(5, rows, cols, jobs);
      }
      std::vector<int> seen(static_cast<size_t>(rows * cols));
      for (const Job& job : jobs) {
        REQUIRE(job.item == 5);
        REQUIRE(job.rows >= 1);
        REQUIRE(job.cols >= 1);
        REQUIRE(job.row + job.rows <= rows);
        REQUIRE(job.col + job.cols <= cols);
        const bool small = tiles ? job.rows <= 2 * kTile && job.cols <= kTile
                                 : int64_t{job.rows} * job.cols <= kJobElements;
        REQUIRE(small);
        if (!tiles) REQUIRE(job.col % kWidth == 0);
        for (int64_t r = 0; r < job.rows; ++r)
          for (int64_t c = 0; c < job.cols; ++c)
            ++seen[static_cast<size_t>((job.row + r) * cols + job.col + c)];
      }
      REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
  }
  std::vector<Job> none;
  cut_rows(0, 0, 7, none);
  cut_rows(0, 7, 0, none);
  CHECK(none.empty());
}

TEST_CASE("cuda items: a rectangle without gaps is one long row", "[emulated]") {
  const Piece dense = {.param = 3,
                       .matrix = 0,
                       .rows = 10,
                       .cols = 40,
                       .local_offset = 7,
                       .local_ld = 40,
                       .packed_offset = 100,
                       .global_row = 0,
                       .global_col = 0,
                       .update_scale = 0.5f};
  Piece gaps = dense, long_one = dense;
  gaps.param = 4;
  gaps.local_ld = 50;
  gaps.packed_offset = 500;
  gaps.update_scale = 0.25f;
  long_one.param = 5;
  long_one.rows = 300;
  long_one.local_offset = 0;
  long_one.packed_offset = 900;
  long_one.update_scale = 1.0f;
  const std::vector<Piece> pieces = {dense, gaps, long_one};
  const ItemList<PieceItem> list = items_of(pieces);
  REQUIRE(list.items.size() == 3);
  REQUIRE(list.jobs.size() == 4);
  CHECK(list.jobs[0].rows == 1);
  CHECK(list.jobs[0].cols == 400);
  CHECK(list.jobs[1].rows == 10);
  CHECK(list.jobs[1].cols == 40);
  CHECK(list.jobs[3].col == kJobElements);
  CHECK(list.jobs[3].cols == 12000 - kJobElements);
  CHECK(list.items[1].local_ld == 50);
  CHECK(list.items[1].packed_ld == 40);
  CHECK(list.items[1].param == 4);
  CHECK(list.items[1].update_scale == 0.25f);
}

TEST_CASE("cuda items: tall matrices are transposed, and badly stored ones refused", "[emulated]") {
  const std::vector<Owned> owned = {{0, 100, 30}, {1, 30, 100}};
  std::vector<MatrixBatch> matrices(2, {nullptr, DType::kBF16, 30, 100, 128, 1, 0});
  const std::vector<MatrixPiece> pieces = {
      {.matrix = 0, .rows = 20, .cols = 10, .row = 5, .col = 7, .packed_offset = 1000},
      {.matrix = 1, .rows = 20, .cols = 10, .row = 5, .col = 7, .packed_offset = 2000}};
  const auto list = items_of(pieces, owned, matrices.data());
  CHECK(list.items[0].transposed == 1);
  CHECK(list.items[0].offset == 7 * 128 + 5);
  CHECK(list.items[1].transposed == 0);
  CHECK(list.items[1].offset == 5 * 128 + 7);
  matrices[0].rows = 31;
  CHECK_THROWS_AS(items_of(pieces, owned, matrices.data()), Error);
}

TEST_CASE("cuda elements: eight at a time are the same as one at a time", "[emulated]") {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    alignas(16) unsigned char from[64], eight[64] = {}, one[64] = {};
    for (uint64_t seed = 0; seed < 200; ++seed) {
      for (int i = 0; i < 64; ++i)
        from[i] = static_cast<unsigned char>(cuda_test::bits_at(seed, i) >> 13);
      Values<kWidth> all = widen(load<kWidth>(from, dtype, 0), dtype);
      for (int i = 0; i < kWidth; ++i) {
        const Values<1> x = widen(load<1>(from, dtype, i), dtype);
        CHECK(std::bit_cast<uint32_t>(x.x[0]) == std::bit_cast<uint32_t>(all.x[i]));
        all.x[i] = x.x[0] * 1.1f;
        store(one, dtype, i, Values<1>{{all.x[i]}});
      }
      store(eight, dtype, 0, all);
      CHECK(std::memcmp(one, eight, sizeof one) == 0);
    }
  }
}

TEST_CASE("cuda elements: what does not stay finite is what rounding makes infinite",
          "[emulated]") {
  const float largest = std::bit_cast<float>(0x7f7f7fffu),
              above = std::bit_cast<float>(0x7f7f8000u);
  CHECK_FALSE(not_finite_as(largest, DType::kBF16));
  CHECK(std::isfinite(to_f32(to_bf16(largest))));
  CHECK(not_finite_as(-above, DType::kBF16));
  CHECK(std::isinf(to_f32(to_bf16(-above))));
  CHECK_FALSE(not_finite_as(above, DType::kF32));
  CHECK(not_finite_as(std::nanf(""), DType::kF32));
  CHECK(not_finite_as(std::numeric_limits<float>::infinity(), DType::kF32));
}

TEST_CASE("cuda norm: the scale brings any largest entry into [1, 2), exactly", "[emulated]") {
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += bits < 4096 ? 1 : 0x1357) {
    const float x = std::bit_cast<float>(bits);
    const Scale s = scale_for(bits);
    const double exact =
        static_cast<double>(x) * static_cast<double>(s.up) * static_cast<double>(s.up2);
    const float scaled = x * s.up * s.up2;
    if (!(scaled >= 1.0f && scaled < 2.0f && static_cast<double>(scaled) == exact)) FAIL(bits);
  }
}

namespace {

/// Whether all numbers of this exponent have, multiplied by a scale, squares of all 24 digits.
bool squares_are_whole(int exponent, Scale s) {
  const float moved = s.up * s.up2;
  for (uint32_t bits = 0x3f800000u; bits < 0x40000000u; bits += 0x10305) {
    const float digits = std::bit_cast<float>(bits);
    const float x = std::ldexp(digits, exponent) * s.up * s.up2;
    const double whole = std::ldexp(static_cast<double>(digits * digits), 2 * exponent);
    if (static_cast<double>(x * x) !=
        whole * static_cast<double>(moved) * static_cast<double>(moved))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("cuda norm: sums are left unscaled where no square loses a digit, and only there",
          "[emulated]") {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  for (int largest = -149; largest < 128; ++largest) {
    for (int least = -149; least <= largest; ++least) {
      const bool taken =
          sums_unscaled(bits(std::ldexp(1.0f, largest)), bits(std::ldexp(1.0f, least)));
      // 2^40 squares of numbers below 2^(largest + 1), at most doubled by rounding, are finite.
      const bool finite = 2 * (largest + 1) + 40 + 1 <= 128;
      const Scale scale = scale_for(bits(std::ldexp(1.0f, largest)));
      const bool whole =
          finite && squares_are_whole(least, {1.0f, 1.0f}) && squares_are_whole(least, scale);
      if (taken != whole) FAIL(largest << ", " << least);
    }
  }
  // The bounds lie between powers of two and what is just below them.
  const auto below = [&](float x) { return bits(x) - 1; };
  CHECK(sums_unscaled(bits(1.0f), bits(0x1p-63f)));
  CHECK_FALSE(sums_unscaled(bits(1.0f), below(0x1p-63f)));
  CHECK(sums_unscaled(below(2.0f), bits(0x1p-63f)));
  CHECK_FALSE(sums_unscaled(bits(2.0f), bits(0x1p-63f)));
  CHECK(sums_unscaled(bits(0x1p-63f), bits(0x1p-63f)));
  CHECK_FALSE(sums_unscaled(below(0x1p-63f), below(0x1p-63f)));
  CHECK(sums_unscaled(below(0x1p43f), bits(0x1p-21f)));
  CHECK_FALSE(sums_unscaled(bits(0x1p43f), bits(0x1p43f)));
}

TEST_CASE("cuda norm: the extremes are those of the magnitudes", "[emulated]") {
  const auto check = [](DType dtype, const std::vector<uint32_t>& words) {
    Extremes seen(dtype);
    uint32_t largest = 0, least = 0;
    const auto look = [&](uint32_t word) {
      const uint32_t size = word & 0x7fffffffu;
      largest = std::max(largest, size);
      if (size != 0) least = least == 0 ? size : std::min(least, size);
    };
    for (const uint32_t word : words) {
      if (dtype == DType::kF32) {
        seen.see<DType::kF32>(word);
        look(word);
      } else {
        seen.see<DType::kBF16>(word);
        look(word & 0xffff0000u);
        look(word << 16);
      }
    }
    if (seen.largest(dtype) != largest || seen.least_negated(dtype) != 0u - least)
      FAIL(name_of(dtype) << ", " << words.front());
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (uint32_t half = 0; half < 1u << 16; ++half) {
      check(dtype, {half});
      check(dtype, {half << 16});
      check(dtype, {half * 0x10001u});
      check(dtype, {half << 16, 0x80008000u, 0x00010000u});
    }
    for (uint64_t seed = 0; seed < 20000; ++seed) {
      std::vector<uint32_t> words;
      for (int64_t i = 0; i < 4; ++i) {
        const uint64_t bits = cuda_test::bits_at(seed, i);
        words.push_back(static_cast<uint32_t>(bits) >> (bits >> 59));
      }
      check(dtype, words);
    }
  }
}

TEST_CASE("cuda norm: the tree of sums adds neighbours first", "[emulated]") {
  // Six values: ((0 + 1) + (2 + 3)) + (4 + 5). With these, other orders give other sums.
  const float values[] = {1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-23f};
  PairwiseSum sum;
  for (const float x : values) sum.add(x);
  const float left = (values[0] + values[1]) + (values[2] + values[3]);
  CHECK(sum.total() == left + (values[4] + values[5]));
  CHECK(PairwiseSum().total() == 0.0f);
  CHECK(bands_of(1) == 1);
  CHECK(bands_of(128) == 128);
  CHECK(bands_of(129) == 65);
  CHECK(bands_of(256) == 128);
}

TEST_CASE("cuda elements: eight of two bytes move at once as they do one by one", "[emulated]") {
  alignas(16) uint16_t from[24], to[24] = {};
  for (int i = 0; i < 24; ++i) from[i] = static_cast<uint16_t>(0x1234 + 0x2f37 * i);
  for (const int at : {0, 8, 16}) {
    const Halves<kWidth> all = load_halves<kWidth>(from, at);
    for (int i = 0; i < kWidth; ++i) {
      CHECK(all.bits[i] == from[at + i]);
      CHECK(load_halves<1>(from, at + i).bits[0] == from[at + i]);
    }
    store_halves(to, at, all);
  }
  CHECK(std::equal(from, from + 24, to));
  store_halves(to, 5, Halves<1>{{7}});
  CHECK(to[5] == 7);
  CHECK(to[6] == from[6]);
}
