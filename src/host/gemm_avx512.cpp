#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "host/gemm_tile.hpp"
#include "host/isa.hpp"
#include "host/transpose.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace muonrt::host {

namespace {

// The depth is processed in words of 32 bits. A word contains one f32, or two bf16 that are
// adjacent in the depth. Every element of a tile is summed over the words from first to last, so
// its bits do not depend on the blocking below.

constexpr int64_t kLanes = 16;              // words in a vector
constexpr int64_t kStripCols = 2 * kLanes;  // number of columns of a packed strip
constexpr int64_t kBlockRows = 8;           // number of rows that are summed together
/// Number of words of the depth that are summed before the next part of the depth. With this value,
/// this part of the rows stays in the L2 cache.
constexpr int64_t kDepthWords = 512;

/// Part of a tile: up to kBlockRows rows and up to kStripCols columns.
struct TileBlock {
  const char* a;          // bf16 may begin at an odd multiple of two bytes
  int64_t a_bytes;        // distance between rows
  const uint32_t* strip;  // words x kStripCols
  int64_t words;
  float* c;
  int64_t c_ld, cols;
  bool add;
};

/// Computes c = a * strip, or c += a * strip. The compiler emits AVX512_BF16 instructions only for
/// intrinsics that need them, so f32 products also run on machines without AVX512_BF16.
template <bool kBf16, int kHeight, int kVectors>
__attribute__((target("avx512f,avx512bf16"))) void multiply_block(const TileBlock& block) {
  __m512 sum[kHeight][kVectors];
  __mmask16 used[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const int64_t cols = std::clamp<int64_t>(block.cols - v * kLanes, 0, kLanes);
    used[v] = static_cast<__mmask16>((1u << cols) - 1);
    const __mmask16 read = block.add ? used[v] : 0;
#pragma GCC unroll 8
    for (int r = 0; r < kHeight; ++r)
      sum[r][v] = _mm512_maskz_loadu_ps(read, block.c + r * block.c_ld + v * kLanes);
  }
  const uint32_t* strip = block.strip;
  for (int64_t k = 0; k < block.words; ++k, strip += kStripCols) {
    __m512 b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) b[v] = _mm512_loadu_ps(strip + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kHeight; ++r) {
      int word;
      std::memcpy(&word, block.a + r * block.a_bytes + 4 * k, sizeof word);
      const __m512 a = _mm512_castsi512_ps(_mm512_set1_epi32(word));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kBf16) {
          sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)a, (__m512bh)b[v]);
        } else {
          sum[r][v] = _mm512_fmadd_ps(a, b[v], sum[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < kHeight; ++r)
      _mm512_mask_storeu_ps(block.c + r * block.c_ld + v * kLanes, used[v], sum[r][v]);
  }
}

using Multiply = void (*)(const TileBlock&);
template <bool kBf16, int kVectors>
constexpr Multiply kMultiply[kBlockRows] = {
    multiply_block<kBf16, 1, kVectors>, multiply_block<kBf16, 2, kVectors>,
    multiply_block<kBf16, 3, kVectors>, multiply_block<kBf16, 4, kVectors>,
    multiply_block<kBf16, 5, kVectors>, multiply_block<kBf16, 6, kVectors>,
    multiply_block<kBf16, 7, kVectors>, multiply_block<kBf16, 8, kVectors>};

/// Packs the columns of one strip from a B that is stored as cols x depth.
struct PackTransposed {
  static MUONRT_ALWAYS_INLINE void run(const char* b, int64_t ld_bytes, int64_t cols,
                                       int64_t depth_bytes, uint32_t* to) {
    for (int64_t first = 0; first < cols; first += kLanes)
      for (int64_t at = 0; at < depth_bytes; at += kBytes)
        pack_square(b + first * ld_bytes + at, ld_bytes, std::min(kLanes, cols - first),
                    std::min(kBytes, depth_bytes - at), to + at / 4 * kStripCols + first);
  }

 private:
  static constexpr int64_t kBytes = 4 * kLanes;

  static MUONRT_ALWAYS_INLINE void pack_square(const char* from, int64_t ld_bytes, int64_t cols,
                                               int64_t bytes, uint32_t* to) {
    alignas(64) char padded[kLanes * kBytes];
    if (cols < kLanes || bytes < kBytes) {
      std::memset(padded, 0, sizeof padded);
      for (int64_t j = 0; j < cols; ++j)
        std::memcpy(padded + j * kBytes, from + j * ld_bytes, static_cast<size_t>(bytes));
      from = padded;
      ld_bytes = kBytes;
    }
    VectorOf<uint32_t, kLanes>::type rows[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) std::memcpy(&rows[j], from + j * ld_bytes, sizeof rows[j]);
    transpose<kLanes>(rows);
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k)
      if (4 * k < bytes) std::memcpy(to + k * kStripCols, &rows[k], sizeof rows[k]);
  }
};

/// Packs the columns of one strip from a bf16 B that is stored as depth x cols.
struct PackPairs {
  static MUONRT_ALWAYS_INLINE void run(const uint16_t* b, int64_t ld, int64_t cols, int64_t depth,
                                       uint32_t* to) {
    for (int64_t k = 0; k < depth; k += 2, to += kStripCols) {
      const uint16_t* const low = b + k * ld;
      const uint16_t* const high = low + ld;
      if (k + 1 == depth) {
        for (int64_t j = 0; j < kStripCols; ++j) to[j] = j < cols ? low[j] : 0;
      } else if (cols == kStripCols) {
        for (int64_t j = 0; j < kStripCols; ++j) to[j] = pair(low[j], high[j]);
      } else {
        for (int64_t j = 0; j < kStripCols; ++j) to[j] = j < cols ? pair(low[j], high[j]) : 0;
      }
    }
  }

 private:
  static MUONRT_ALWAYS_INLINE uint32_t pair(uint16_t low, uint16_t high) {
    return low | static_cast<uint32_t>(high) << 16;
  }
};

class Avx512Panel final : public PanelProduct {
 public:
  explicit Avx512Panel(const PanelShape& shape)
      : shape_(shape), bf16_(shape.dtype == DType::kBF16) {}

  bool any_rows() const override { return true; }
  int64_t packed_bytes() const override { return round_up(shape_.cols, kStripCols) * words() * 4; }
  /// Returns the size of a copy of A whose rows begin at whole words.
  int64_t scratch_bytes() const override {
    return odd() ? std::max(shape_.rows[0], shape_.rows[1]) * words() * 4 : 0;
  }

  void pack(const void* b, void* packed, void*) const override {
    const char* const from = static_cast<const char*>(b);
    uint32_t* to = static_cast<uint32_t*>(packed);
    const int64_t size = size_of(shape_.dtype);
    for (int64_t j = 0; j < shape_.cols; j += kStripCols, to += words() * kStripCols) {
      const int64_t cols = std::min(kStripCols, shape_.cols - j);
      if (shape_.transpose_b) {
        run_pass<PackTransposed>(Isa::kAvx512, from + j * shape_.b_ld * size, shape_.b_ld * size,
                                 cols, shape_.depth * size, to);
      } else if (bf16_) {
        run_pass<PackPairs>(Isa::kAvx512, reinterpret_cast<const uint16_t*>(from) + j, shape_.b_ld,
                            cols, shape_.depth, to);
      } else {
        for (int64_t k = 0; k < shape_.depth; ++k)
          std::memcpy(to + k * kStripCols, from + (k * shape_.b_ld + j) * 4,
                      static_cast<size_t>(cols) * 4);
      }
    }
  }

  void run(int64_t rows, const void* a, const void* packed, int64_t first_col, float* c,
           void* scratch) const override {
    const char* left = static_cast<const char*>(a);
    if (odd()) left = padded(rows, left, static_cast<char*>(scratch));
    for (int64_t k = 0; k < words(); k += kDepthWords)
      run_depth(rows, left, static_cast<const uint32_t*>(packed), first_col, k, c);
  }

 private:
  int64_t words() const { return bf16_ ? ceil_div(shape_.depth, 2) : shape_.depth; }
  bool odd() const { return bf16_ && shape_.depth % 2 != 0; }

  /// Adds the products of one part of the depth, which begins at word `begin`.
  void run_depth(int64_t rows, const char* a, const uint32_t* packed, int64_t first_col,
                 int64_t begin, float* c) const {
    const int64_t width = shape_.cols, row_bytes = 4 * words();
    const int64_t depth = std::min(kDepthWords, words() - begin);
    for (int64_t j = first_col / kStripCols * kStripCols; j < width; j += kStripCols) {
      const int64_t skipped = first_col >= j + kLanes ? kLanes : 0;
      const uint32_t* const strip = packed + j * words() + begin * kStripCols + skipped;
      const int64_t cols = std::min(kStripCols, width - j) - skipped;
      const Multiply* const list =
          bf16_ ? (cols <= kLanes ? kMultiply<true, 1> : kMultiply<true, 2>)
                : (cols <= kLanes ? kMultiply<false, 1> : kMultiply<false, 2>);
      for (int64_t r = 0; r < rows; r += kBlockRows)
        list[std::min(kBlockRows, rows - r) - 1]({a + r * row_bytes + 4 * begin, row_bytes, strip,
                                                  depth, c + r * width + j + skipped, width, cols,
                                                  begin > 0});
    }
  }

  /// Copies A to `to`, with a zero after each row.
  const char* padded(int64_t rows, const char* a, char* to) const {
    const int64_t bytes = 2 * shape_.depth;
    for (int64_t r = 0; r < rows; ++r) {
      char* const row = to + r * 4 * words();
      std::memcpy(row, a + r * bytes, static_cast<size_t>(bytes));
      std::memset(row + bytes, 0, 2);
    }
    return to;
  }

  PanelShape shape_;
  bool bf16_;
};

class Avx512Kernel final : public TileKernel {
 public:
  explicit Avx512Kernel(const TileKernel* library) : library_(library) {}

  const char* name() const override { return "avx512"; }
  std::string identity() const override {
    return cat("avx512 1", native_bf16() ? " bf16" : "",
               library_ != nullptr ? cat(", ", library_->identity()) : "");
  }
  bool supports_bf16() const override {
    return native_bf16() || (library_ != nullptr && library_->supports_bf16());
  }
  bool has_matrix_unit() const override {
    return library_ != nullptr && library_->has_matrix_unit();
  }
  std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const override {
    if (!computes(shape.dtype)) return library_->panel(shape);
    return std::make_unique<const Avx512Panel>(shape);
  }
  int64_t largest_tile(DType dtype) const override {
    return computes(dtype) ? kSmallTile : library_->largest_tile(dtype);
  }

 private:
  /// Returns whether this kernel computes the products. Otherwise the library computes them,
  /// because it uses AMX or because there are no instructions for bf16.
  bool computes(DType dtype) const {
    return dtype == DType::kF32 || (native_bf16() && !has_matrix_unit());
  }
  static bool native_bf16() { return __builtin_cpu_supports("avx512bf16"); }
  const TileKernel* library_;
};

}  // namespace

const TileKernel* avx512_kernel() {
  static const Avx512Kernel kernel(onednn_kernel());
  return best_isa() == Isa::kAvx512 ? &kernel : nullptr;
}

}  // namespace muonrt::host

#else

namespace muonrt::host {
const TileKernel* avx512_kernel() { return nullptr; }
}  // namespace muonrt::host

#endif
