// Tests the layouts that the kernels and the emulated instructions share. The expected values are
// from the manual of the instruction set.

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
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(swizzled128(row, chunk) % 128);
      CHECK(banks.size() == 8);
    }
  }
}

TEST_CASE("symmetric layouts: no two chunks have the same address", "[emulated]") {
  std::set<int> all;
  for (int row = 0; row < 128; ++row)
    for (int chunk = 0; chunk < 8; ++chunk) all.insert(swizzled128(row, chunk));
  CHECK(all.size() == 128 * 8);
  CHECK(*all.rbegin() == 128 * 128 - 16);
}

TEST_CASE("symmetric layouts: fragments contain every element once", "[emulated]") {
  std::set<std::pair<int, int>> all;
  for (int thread = 0; thread < 128; ++thread)
    for (int v = 0; v < 128; ++v) all.insert({wgmma_c(thread, v).row, wgmma_c(thread, v).col});
  CHECK(all.size() == 64 * 256);
  CHECK(all.rbegin()->first == 63);
}

// The numbers are from the figures of the manual (PTX ISA 9.0: wgmma's D, stmatrix, and the
// 128-byte swizzle). The emulated instructions cannot check the layouts, because they use the
// kernels' layouts.
TEST_CASE("symmetric layouts: some lanes, registers and chunks are as in the manual",
          "[emulated]") {
  using Places = std::vector<std::pair<int, int>>;
  const auto list = [](int count, const auto& map) {
    Places out;
    for (int i = 0; i < count; ++i) out.emplace_back(map(i).row, map(i).col);
    return out;
  };
  const auto d = [&](int thread) { return list(8, [=](int v) { return wgmma_c(thread, v); }); };
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
  // The chunks of row 5, ordered by address, are 5, 4, 7, 6, 1, 0, 3, 2. The pattern of row 8 is
  // the same as that of row 0.
  const int places[] = {5, 4, 7, 6, 1, 0, 3, 2};
  for (int place = 0; place < 8; ++place) {
    CHECK(swizzled128(5, places[place]) == 5 * 128 + 16 * place);
    CHECK(swizzled128(8, place) == 8 * 128 + 16 * place);
  }
}

TEST_CASE("symmetric layouts: descriptors are as in the manual", "[emulated]") {
  // The fields are: bits 0-13 address / 16, bits 16-29 leading offset 1, bits 32-45 stride 1024 /
  // 16 = 0x40, bits 62-63 swizzle 1.
  CHECK(wgmma_descriptor(0) == 0x4000004000010000u);
  CHECK(wgmma_descriptor(0x400) == 0x4000004000010040u);
  CHECK(wgmma_descriptor(0x38000) == 0x4000004000013800u);
  CHECK(wgmma_descriptor(0x38000 + 32) == wgmma_descriptor(0x38000) + 2);
}

TEST_CASE("symmetric layouts: MN-major descriptors are as in CUTLASS", "[emulated]") {
  // For the layout ((8, 8, m), (8, k)) : ((1, 8, LBO), (64, SBO)) of 16-bit elements, a block of 64
  // columns and 64 depths has 8 KB: bits 16-29 are 8192 / 16 = 0x200, bits 32-45 are 0x40.
  CHECK(wgmma_descriptor_mn(0, 8192) == 0x4000004002000000u);
  CHECK(wgmma_descriptor_mn(0x38000, 8192) == 0x4000004002003800u);
  CHECK(wgmma_descriptor_mn(0x38000 + 2048, 8192) == wgmma_descriptor_mn(0x38000, 8192) + 128);
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
