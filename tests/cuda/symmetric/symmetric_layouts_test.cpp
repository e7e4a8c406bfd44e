// The layouts that the kernels and the emulated instructions share, compared with the manual of the
// instruction set.

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "cuda/kernels/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"

using namespace muonrt;
using namespace muonrt::cuda;

TEST_CASE("symmetric layouts: eight rows of a column of chunks use different banks", "[emulated]") {
  for (int chunk = 0; chunk < 8; ++chunk) {
    for (int first = 0; first < 128; first += 8) {
      std::set<int> wide, narrow;
      for (int row = first; row < first + 8; ++row) {
        wide.insert(swizzled128(row, chunk) % 128 / 16);
        if (chunk < 4) narrow.insert(swizzled64(row, chunk) % 128 / 16);
      }
      CHECK(wide.size() == 8);
      CHECK((chunk >= 4 || narrow.size() == 8));
    }
  }
}

TEST_CASE("symmetric layouts: no two chunks have the same address", "[emulated]") {
  std::set<int> wide, narrow;
  for (int row = 0; row < 128; ++row) {
    for (int chunk = 0; chunk < 8; ++chunk) wide.insert(swizzled128(row, chunk));
    for (int chunk = 0; chunk < 4; ++chunk) narrow.insert(swizzled64(row, chunk));
  }
  CHECK(wide.size() == 128 * 8);
  CHECK(*wide.rbegin() == 128 * 128 - 16);
  CHECK(narrow.size() == 128 * 4);
  CHECK(*narrow.rbegin() == 128 * 64 - 16);
}

TEST_CASE("symmetric layouts: fragments contain every element once", "[emulated]") {
  std::set<std::pair<int, int>> a, b, c, wide;
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) a.insert({mma_a(lane, w).row, mma_a(lane, w).col});
    for (int w = 0; w < 2; ++w) b.insert({mma_b(lane, w).row, mma_b(lane, w).col});
    for (int v = 0; v < 4; ++v) c.insert({mma_c(lane, v).row, mma_c(lane, v).col});
  }
  for (int thread = 0; thread < 128; ++thread)
    for (int v = 0; v < 128; ++v) wide.insert({wgmma_c(thread, v).row, wgmma_c(thread, v).col});
  CHECK(a.size() == 16 * 8);
  CHECK(b.size() == 8 * 8);
  CHECK(c.size() == 16 * 8);
  CHECK(wide.size() == 64 * 256);
  CHECK(wide.rbegin()->first == 63);
}

// Numbers from the manual's figures (PTX ISA 9.0: mma.m16n8k16, wgmma's D, stmatrix, and the
// 128-byte swizzle). The emulated instructions cannot check them, because they use the kernels'
// layouts.
TEST_CASE("symmetric layouts: some lanes, registers and chunks are as in the manual",
          "[emulated]") {
  using Places = std::vector<std::pair<int, int>>;
  const auto list = [](int count, const auto& map) {
    Places out;
    for (int i = 0; i < count; ++i) out.emplace_back(map(i).row, map(i).col);
    return out;
  };
  const auto a = [&](int lane) { return list(4, [=](int w) { return mma_a(lane, w); }); };
  const auto b = [&](int lane) { return list(2, [=](int w) { return mma_b(lane, w); }); };
  const auto c = [&](int lane) { return list(4, [=](int v) { return mma_c(lane, v); }); };
  const auto d = [&](int thread) { return list(8, [=](int v) { return wgmma_c(thread, v); }); };
  CHECK(a(0) == Places{{0, 0}, {8, 0}, {0, 8}, {8, 8}});
  CHECK(a(5) == Places{{1, 2}, {9, 2}, {1, 10}, {9, 10}});
  CHECK(a(30) == Places{{7, 4}, {15, 4}, {7, 12}, {15, 12}});
  CHECK(b(5) == Places{{1, 2}, {1, 10}});
  CHECK(b(30) == Places{{7, 4}, {7, 12}});
  CHECK(c(5) == Places{{1, 2}, {1, 3}, {9, 2}, {9, 3}});
  CHECK(c(30) == Places{{7, 4}, {7, 5}, {15, 4}, {15, 5}});
  CHECK(d(0) == Places{{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}, {8, 8}, {8, 9}});
  CHECK(d(37) ==
        Places{{17, 2}, {17, 3}, {25, 2}, {25, 3}, {17, 10}, {17, 11}, {25, 10}, {25, 11}});
  CHECK(wgmma_c(127, 126).row == 63);
  CHECK(wgmma_c(127, 126).col == 254);
  // Lanes 8 i to 8 i + 7 pass the rows of the matrix in register i.
  const auto straight = [](int lane) { return stmatrix_straight(1, lane, 2); };
  const auto mirrored = [](int lane) { return stmatrix_mirrored(1, lane, 2); };
  const auto at = [&](const auto& map) {
    Places out;
    for (const int lane : {1, 9, 17, 25}) out.emplace_back(map(lane).row, map(lane).col);
    return out;
  };
  CHECK(at(straight) == Places{{17, 4}, {25, 4}, {17, 5}, {25, 5}});
  CHECK(at(mirrored) == Places{{33, 2}, {33, 3}, {41, 2}, {41, 3}});
  // The chunks of row 5, ordered by address, are 5, 4, 7, 6, 1, 0, 3, 2; row 8 begins the pattern
  // again.
  const int places[] = {5, 4, 7, 6, 1, 0, 3, 2};
  for (int place = 0; place < 8; ++place) {
    CHECK(swizzled128(5, places[place]) == 5 * 128 + 16 * place);
    CHECK(swizzled128(8, place) == 8 * 128 + 16 * place);
  }
}

TEST_CASE("symmetric layouts: ldmatrix loads each word into the register that mma reads",
          "[emulated]") {
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) {
      // Word w of a lane is element pair lane % 4 of the row whose address lane 8 w + lane / 4
      // passed.
      const int source = 8 * w + lane / 4;
      const Offset2 row = ldmatrix_a(source), expected = mma_a(lane, w);
      CHECK(row.row == expected.row);
      CHECK(8 * row.col + 2 * (lane % 4) == expected.col);
      const Offset2 col = ldmatrix_b(source), in_b = mma_b(lane, w % 2);
      CHECK(col.row == in_b.row + 8 * (w / 2));
      CHECK(8 * col.col + 2 * (lane % 4) == in_b.col);
    }
  }
}

TEST_CASE("symmetric layouts: descriptors are as in the manual", "[emulated]") {
  // Bits 0-13 address / 16, 16-29 leading offset 1, 32-45 stride 1024 / 16 = 0x40, 62-63 swizzle 1.
  CHECK(wgmma_descriptor(0) == 0x4000004000010000u);
  CHECK(wgmma_descriptor(0x400) == 0x4000004000010040u);
  CHECK(wgmma_descriptor(0x38000) == 0x4000004000013800u);
  CHECK(wgmma_descriptor(0x38000 + 32) == wgmma_descriptor(0x38000) + 2);
}

TEST_CASE("symmetric layouts: f16 conversions are exact both ways", "[emulated]") {
  int64_t wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = widened<DType::kF16>(static_cast<uint16_t>(bits));
    const auto back = static_cast<uint16_t>(packed<DType::kF16>(x, 0.0f));
    wrong += std::isnan(x) ? (back & 0x7fffu) <= 0x7c00u : back != bits;
  }
  CHECK(wrong == 0);
  const auto round = [](float x) { return packed<DType::kF16>(x, 0.0f) & 0xffffu; };
  CHECK(round(1.0f + 0x1p-11f) == 0x3c00u);
  CHECK(round(1.0f + 3 * 0x1p-11f) == 0x3c02u);
  CHECK(round(65519.0f) == 0x7bffu);
  CHECK(round(65520.0f) == 0x7c00u);
  CHECK(round(0x1p-25f) == 0u);
  CHECK(round(0x1.8p-25f) == 1u);
}
