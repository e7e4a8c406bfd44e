#pragma once

#include <cuda_runtime.h>

#include "cuda/device/launch.hpp"
#include "cuda/kernels/bits.cuh"
#include "cuda/kernels/jobs.hpp"

// Copies two tiles of an array, transposed, to another array in one thread block. If vectors are
// used, a thread reads neighboring elements of a row. It stores each element in the element's
// column of a tile in shared memory, where the elements of a column are contiguous. After a
// barrier, it reads neighboring elements of a column and writes them. Two-byte elements are
// processed in pairs of rows, so that only whole words of 4 bytes are stored.
//
// The address of a 16-byte chunk of a column is swizzled: the index of the chunk is XORed with the
// index of the column's group. A warp that stores (8 groups x 4 words of a chunk) and a warp that
// reads (8 chunks of each column) therefore use all banks. Rows that do not begin or end at a
// multiple of a vector are processed element by element.

namespace muonrt::cuda {

/// The rows of an array. Element (row, col) is at first + row * ld + col.
struct Rows {
  void* data;
  DType dtype;
  int64_t first, ld;

  __device__ int64_t index(int row, int col) const { return first + row * ld + col; }
  __device__ Rows from(int row, int col) const { return {data, dtype, index(row, col), ld}; }
  /// Returns the address of an element.
  /// @param known  a dtype that is known at compile time and has the size of `dtype`.
  __device__ char* at(int row, int col, DType known) const {
    return static_cast<char*>(data) + index(row, col) * size_of(known);
  }
};

/// Returns whether all `count` rows begin at multiples of a vector.
__device__ inline bool vectors_fit(const Rows& rows, int count) {
  return aligned(rows.data, rows.dtype, rows.first) &&
         (count == 1 || aligned_stride(rows.dtype, rows.ld));
}

constexpr int kSide = static_cast<int>(kTile);
static_assert(kSide == 64 && kThreads == 256 && kWidth == 8);

/// The shared memory of a thread block: two tiles of two-byte elements, or one tile of four-byte
/// elements.
union Tile {
  // The additional column puts the elements of a column into different banks.
  float values[kSide][kSide + 1];
  uint32_t bits[kSide][kSide + 1];
  Vec16 halves[2][kSide * kSide / 8];
  Vec16 words[kSide * kSide / 4];
};

/// A rectangle of `from` (rows x cols) and its destination (cols x rows). If kTall is true, the
/// second tile is below the first tile in `from`. Otherwise, the tiles are side by side.
template <bool kTall>
struct TransposedTile {
  Rows from, to;
  int rows, cols;

  __device__ bool has(int tile) const { return tile * kSide < (kTall ? rows : cols); }
  /// Returns whether the array has this element of a tile.
  __device__ bool reaches(int tile, int row, int col) const {
    return row + (kTall ? tile * kSide : 0) < rows && col + (kTall ? 0 : tile * kSide) < cols;
  }
  __device__ TransposedTile of(int tile) const {
    const int down = kTall ? tile * kSide : 0, across = kTall ? 0 : tile * kSide;
    return {from.from(down, across), to.from(across, down), rows - down, cols - across};
  }
};

/// Copies two-byte elements that keep their dtype, or that are widened when they are read from the
/// tile.
struct CopyBits {
  static constexpr DType kFrom = DType::kBF16;  // only the size of this dtype is used
  static constexpr bool kBothFirst = true;      // loads both tiles first; more loads in flight
  HalfBits bits;

  /// @param words  receives 8 elements of one row, and then 8 elements of the next row.
  __device__ void take(const Raw<kWidth> (&rows)[2], uint32_t (&words)[8]) {
    for (int i = 0; i < 8; ++i) words[i] = rows[i / 4].low.word[i % 4];
    bits.check(words);
  }
  __device__ bool bad() const { return bits.bad(); }
};

/// Rounds elements to bf16 before they are stored in the tile.
template <DType kDType>
struct Rounded {
  static constexpr DType kFrom = kDType;
  static constexpr bool kBothFirst = false;  // 48 registers cannot hold the values of both tiles
  WordBits bits;

  __device__ void take(const Raw<kWidth> (&rows)[2], uint32_t (&words)[8]) {
    for (int row = 0; row < 2; ++row) {
      const Values<kWidth> x = widen(rows[row], kFrom);
      for (const float value : x.x) bits.check(std::bit_cast<uint32_t>(value));
      for (int i = 0; i < 4; ++i)
        words[4 * row + i] = packed<DType::kBF16>(x.x[2 * i], x.x[2 * i + 1]);
    }
  }
  __device__ bool bad() const { return bits.bad(DType::kBF16); }
};

/// Stores words in a tile. Each word contains elements of two rows and is stored in one of eight
/// columns.
/// @param column  the address of the word in the first column.
__device__ inline void store_pair(uint32_t* column, const uint32_t (&rows)[8]) {
  for (int i = 0; i < 4; ++i, column += 2 * (kSide / 2)) {
    column[0] = (rows[i] & 0xffffu) | rows[4 + i] << 16;
    column[kSide / 2] = rows[i] >> 16 | (rows[4 + i] & 0xffff0000u);
  }
}

/// Fills the tiles from `from`.
template <bool kTall, class How>
__device__ inline void fill_halves(Tile& tile, const TransposedTile<kTall>& c, How& how) {
  const int group = static_cast<int>(threadIdx.x % 8), pair = static_cast<int>(threadIdx.x / 8);
  const char* const first = c.from.at(2 * pair, kWidth * group, How::kFrom);
  const int64_t stride = c.from.ld * size_of(How::kFrom);
  const int64_t next = kTall ? kSide * stride : kSide * size_of(How::kFrom);
  auto* const column =
      reinterpret_cast<uint32_t*>(&tile.halves[0][64 * group + (pair / 4 ^ group)]) + pair % 4;
  Raw<kWidth> raw[2][2];
  const auto read = [&](int t) {
    if (!c.reaches(t, 2 * pair, kWidth * group)) return;
    raw[t][0] = load<kWidth>(first + t * next, How::kFrom, 0);
    raw[t][1] = load<kWidth>(first + t * next + stride, How::kFrom, 0);
  };
  const auto keep = [&](int t) {
    if (!c.reaches(t, 2 * pair, kWidth * group)) return;
    uint32_t words[8];
    how.take(raw[t], words);
    store_pair(column + t * kSide * kSide / 2, words);
  };
  read(0);
  if (How::kBothFirst) read(1);
  keep(0);
  if (!How::kBothFirst) read(1);
  keep(1);
}

/// The part of each tile that a thread writes: kWidth rows, starting with `row`, in the columns
/// `col` and col + 4.
struct FlushedTile {
  int row = kWidth * static_cast<int>(threadIdx.x % 8);
  int col = kWidth * static_cast<int>(threadIdx.x / 32) + static_cast<int>(threadIdx.x / 8 % 4);
};

/// Calls write(t, k, raw) for the thread's rows in column col + 4 k of tile t. The tiles have
/// two-byte elements.
template <bool kTall, class Write>
__device__ inline void flush(const Tile& tile, const TransposedTile<kTall>& c,
                             const FlushedTile& mine, const Write& write) {
  const int chunk = 8 * mine.col + (mine.row / kWidth ^ mine.col / kWidth);
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    if (!c.reaches(t, mine.row, mine.col)) continue;
    for (int k = 0; k < 2; ++k) {
      Raw<kWidth> raw;
      raw.low = tile.halves[t][chunk + k * 4 * 8];
      write(t, k, raw);
    }
  }
}

/// Casts the tiles' elements from kHalves to kTo and writes them to `to`.
template <DType kHalves, DType kTo, bool kTall>
__device__ inline void flush_halves(const Tile& tile, const TransposedTile<kTall>& c) {
  const FlushedTile mine;
  char* const first = c.to.at(mine.col, mine.row, kTo);
  const int64_t stride = c.to.ld * size_of(kTo);
  const int64_t next = kTall ? kSide * size_of(kTo) : kSide * stride;
  flush(tile, c, mine, [&](int t, int k, const Raw<kWidth>& raw) {
    char* const at = first + t * next + k * 4 * stride;
    if constexpr (kTo == DType::kF32) {
      store(at, kTo, 0, widen(raw, kHalves));
    } else {
      store_raw(at, kTo, 0, raw);
    }
  });
}

/// Transposes elements. `how` stores them in the tiles as elements of kHalves.
template <DType kHalves, DType kTo, bool kTall, class How>
__device__ inline bool transpose_halves(Tile& tile, const TransposedTile<kTall>& c, How how) {
  fill_halves(tile, c, how);
  __syncthreads();
  flush_halves<kHalves, kTo>(tile, c);
  return how.bad();
}

/// Returns the address of a chunk of four f32 at a multiple of 16 bytes.
__device__ inline float* chunk_of(const Rows& rows, int row, int col) {
  return static_cast<float*>(rows.data) + rows.index(row, col);
}

/// Transposes one tile of f32 in groups of four columns and chunks of four rows.
template <bool kTall>
__device__ inline void transpose_words(Tile& tile, const TransposedTile<kTall>& c, WordBits& bits) {
  const int group = static_cast<int>(threadIdx.x % 8), row = static_cast<int>(threadIdx.x / 8);
  const auto mine = [&](int i) { return c.reaches(0, row + i % 2 * 32, 4 * (group + i / 2 * 8)); };
  Vec16 chunks[4];
#pragma unroll
  // All loads come first, because the compiler does not move a load across a store to the tile.
  for (int i = 0; i < 4; ++i)
    if (mine(i))
      chunks[i] = load_vec16(chunk_of(c.from, row + i % 2 * 32, 4 * (group + i / 2 * 8)));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (!mine(i)) continue;
    bits.check(chunks[i]);
    const int chunk = (row / 4 ^ group) + i % 2 * 8;
    auto* const first =
        reinterpret_cast<uint32_t*>(tile.words + 64 * (group + i / 2 * 8) + chunk) + row % 4;
    for (int k = 0; k < 4; ++k) first[kSide * k] = chunks[i].word[k];
  }
  __syncthreads();
  const int unit = static_cast<int>(threadIdx.x % 16), first = static_cast<int>(threadIdx.x / 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int col = first + i * 16;
    if (c.reaches(0, 4 * unit, col))
      store_vec16(chunk_of(c.to, col, 4 * unit), tile.words[16 * col + (unit ^ col / 4 % 8)]);
  }
}

/// Transposes one tile element by element, for any shape and alignment.
template <bool kTall>
__device__ inline bool transpose_elements(Tile& tile, const TransposedTile<kTall>& c) {
  const int across = static_cast<int>(threadIdx.x % kSide);
  const int down = static_cast<int>(threadIdx.x / kSide);
  const int rows = c.rows < kSide ? c.rows : kSide, cols = c.cols < kSide ? c.cols : kSide;
  bool bad = false;
  for (int row = down; row < rows && across < cols; row += kThreads / kSide) {
    const float x =
        widen(load<1>(c.from.data, c.from.dtype, c.from.index(row, across)), c.from.dtype).x[0];
    bad |= not_finite_as(x, c.to.dtype);
    tile.values[row][across] = x;
  }
  __syncthreads();
  for (int col = down; col < cols && across < rows; col += kThreads / kSide)
    store(c.to.data, c.to.dtype, c.to.index(col, across), Values<1>{{tile.values[across][col]}});
  return bad;
}

/// Calls function(c.of(t)) for every tile t.
template <bool kTall, class Function>
__device__ inline void tile_by_tile(const TransposedTile<kTall>& c, const Function& function) {
  for (int t = 0; c.has(t); ++t) {
    if (t > 0) __syncthreads();  // other threads may still read the previous tile
    function(c.of(t));
  }
}

/// Returns whether all rows begin and end at multiples of a vector.
template <bool kTall>
__device__ inline bool vectors_cross(const TransposedTile<kTall>& c) {
  const auto remainders = [](const Rows& rows) {
    const int64_t size = size_of(rows.dtype);
    return (reinterpret_cast<intptr_t>(rows.data) + rows.first * size) | rows.ld * size;
  };
  return (c.rows | c.cols) % kWidth == 0 && ((remainders(c.from) | remainders(c.to)) & 15) == 0;
}

/// Copies `from`, transposed, to `to`, and casts it to the dtype of `to` with the same rounding as
/// on the host.
/// @return  whether a written value is non-finite.
template <bool kTall>
__device__ inline bool transpose(Tile& tile, const TransposedTile<kTall>& c) {
  const DType from = c.from.dtype, to = c.to.dtype;
  if (vectors_cross(c)) {
    if (from == DType::kF32 && to == DType::kF32) {
      WordBits bits;
      tile_by_tile(c,
                   [&](const TransposedTile<kTall>& part) { transpose_words(tile, part, bits); });
      return bits.bad();
    }
    constexpr DType kF16 = DType::kF16, kBF16 = DType::kBF16, kF32 = DType::kF32;
    const HalfBits bits(from, to);
    if (from == to) return transpose_halves<kBF16, kBF16>(tile, c, CopyBits{bits});
    if (to == kF32)
      return from == kF16 ? transpose_halves<kF16, kF32>(tile, c, CopyBits{bits})
                          : transpose_halves<kBF16, kF32>(tile, c, CopyBits{bits});
    if (to == kBF16)
      return from == kF32 ? transpose_halves<kBF16, kBF16>(tile, c, Rounded<kF32>{})
                          : transpose_halves<kBF16, kBF16>(tile, c, Rounded<kF16>{});
  }
  bool bad = false;
  tile_by_tile(c,
               [&](const TransposedTile<kTall>& part) { bad |= transpose_elements(tile, part); });
  return bad;
}

}  // namespace muonrt::cuda
