#pragma once

#include <cstdint>

#include "backend/update_rules.hpp"

// Defines the position of each element in shared memory and in the registers of a warpgroup. The
// kernels, the emulated instructions and the tests use these definitions. Source: PTX ISA 9.0,
// matrix fragments of stmatrix and wgmma.

namespace muonrt::cuda {

/// Number of 16-bit elements in a chunk of 16 bytes, which is the unit of the swizzles.
constexpr int kChunk = 8;

/// Returns the byte offset of a chunk in rows of 128 bytes, in the 128-byte swizzle mode of TMA
/// copies and wgmma. The memory begins at a multiple of 1024. The chunks of one column in eight
/// consecutive rows use different banks.
MUONRT_HOST_DEVICE constexpr int swizzled128(int row, int chunk) {
  return row * 128 + ((chunk ^ (row & 7)) << 4);
}

struct Offset2 {
  int row, col;
};

/// Returns the row and column of the element that a thread of the warpgroup holds as its value
/// number `value` after wgmma.m64nNk16, for any N.
MUONRT_HOST_DEVICE constexpr Offset2 wgmma_c(int thread, int value) {
  return {thread / 32 * 16 + thread % 32 / 4 + 8 * (value / 2 % 2),
          value / 4 * 8 + 2 * (thread % 4) + value % 2};
}

/// Returns the row and the 16-byte chunk whose address a lane passes to stmatrix.x4. Each warp of a
/// warpgroup stores 16 rows by 16 columns of C, at column 16 q of a 64 x 64 square. Words are in
/// the order of wgmma_c: (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
MUONRT_HOST_DEVICE constexpr Offset2 stmatrix_straight(int warp, int lane, int q) {
  return {16 * warp + 8 * (lane / 8 % 2) + lane % 8, 2 * q + lane / 16};
}
/// Like stmatrix_straight, but for stmatrix.x4.trans, which stores the same registers into the
/// transposed square.
MUONRT_HOST_DEVICE constexpr Offset2 stmatrix_mirrored(int warp, int lane, int q) {
  return {8 * (2 * q + lane / 16) + lane % 8, 2 * warp + lane / 8 % 2};
}

/// Which dimension of a wgmma operand is contiguous in shared memory. kK means the depth, and kMN
/// means the rows of A or the columns of B.
enum class Major { kK, kMN };

/// Returns the descriptor of a K-major operand of wgmma in the 128-byte swizzle mode. 8 rows of 128
/// bytes form a group of 1024 bytes.
/// @param address  position in shared memory, in bytes. It increases by 32 for every 16 steps of
///     the depth.
MUONRT_HOST_DEVICE constexpr uint64_t wgmma_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeading = uint64_t{1} << 16;  // ignored in this mode
  return kSwizzle128 | kGroupStride | kLeading | ((address & 0x3ffff) >> 4);
}

/// Like wgmma_descriptor, but for an MN-major operand. 64 columns at one depth occupy 128 bytes,
/// and 8 depths form a group of 1024 bytes. Source: CUTLASS, cute/atom/mma_traits_sm90_gmma.hpp,
/// B128.
/// @param address  position in shared memory. It increases by 2048 for every 16 elements of depth.
/// @param block    distance in bytes between adjacent blocks of 64 columns.
MUONRT_HOST_DEVICE constexpr uint64_t wgmma_descriptor_mn(uint32_t address, uint32_t block) {
  constexpr uint64_t kLeading = uint64_t{0x3fff} << 16;
  return (wgmma_descriptor(address) & ~kLeading) | uint64_t{block >> 4} << 16;
}

}  // namespace muonrt::cuda
