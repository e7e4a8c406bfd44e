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

// The depth is processed in words of 32 bits. A word is an f32, or two bf16 that are adjacent in
// the depth. Every element of a tile is summed in one register over the words from first to last,
// so its bits do not depend on the blocking below.

constexpr int64_t kLanes = 16;          // words in a vector
constexpr int64_t kStrip = 2 * kLanes;  // number of columns of a packed strip
constexpr int64_t kRows = 8;            // number of rows that are summed together

/// Part of a tile: up to kRows rows and up to kStrip columns.
struct Block {
  const uint32_t* a;
  int64_t a_ld;           // in words
  const uint32_t* strip;  // words x kStrip
  int64_t words;
  float* c;
  int64_t c_ld, cols;
};

/// Computes c = a * strip. For f32 it contains no instructions of AVX512_BF16, although the
/// compiler may use them.
template <bool kBf16, int kHeight, int kVectors>
__attribute__((target("avx512f,avx512bf16"))) void multiply_block(const Block& block) {
  __m512 sum[kHeight][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kHeight; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  const uint32_t* strip = block.strip;
  for (int64_t k = 0; k < block.words; ++k, strip += kStrip) {
    __m512 b[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) b[v] = _mm512_loadu_ps(strip + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kHeight; ++r) {
      int word;
      std::memcpy(&word, block.a + r * block.a_ld + k, sizeof word);
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
    const int64_t left = std::clamp<int64_t>(block.cols - v * kLanes, 0, kLanes);
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
#pragma GCC unroll 8
    for (int r = 0; r < kHeight; ++r)
      _mm512_mask_storeu_ps(block.c + r * block.c_ld + v * kLanes, mask, sum[r][v]);
  }
}

using Multiply = void (*)(const Block&);
template <bool kBf16, int kVectors>
constexpr Multiply kMultiply[kRows] = {
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
                    std::min(kBytes, depth_bytes - at), to + at / 4 * kStrip + first);
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
    Sixteen rows[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) std::memcpy(&rows[j], from + j * ld_bytes, sizeof rows[j]);
    transpose(rows);
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k)
      if (4 * k < bytes) std::memcpy(to + k * kStrip, &rows[k], sizeof rows[k]);
  }
};

/// Packs the columns of one strip from a bf16 B that is stored as depth x cols.
struct PackPairs {
  static MUONRT_ALWAYS_INLINE void run(const uint16_t* b, int64_t ld, int64_t cols, int64_t depth,
                                       uint32_t* to) {
    for (int64_t k = 0; k < depth; k += 2, to += kStrip) {
      uint16_t low[kStrip] = {}, high[kStrip] = {};
      copy(b + k * ld, cols, low);
      if (k + 1 < depth) copy(b + (k + 1) * ld, cols, high);
      for (int64_t j = 0; j < kStrip; ++j) to[j] = low[j] | static_cast<uint32_t>(high[j]) << 16;
    }
  }

 private:
  static MUONRT_ALWAYS_INLINE void copy(const uint16_t* from, int64_t cols, uint16_t* to) {
    if (cols == kStrip) {
      std::memcpy(to, from, kStrip * sizeof *to);
    } else {
      std::memcpy(to, from, static_cast<size_t>(cols) * sizeof *to);
    }
  }
};

class Avx512Panel final : public PanelProduct {
 public:
  explicit Avx512Panel(const PanelShape& shape)
      : shape_(shape), bf16_(shape.dtype == DType::kBF16) {}

  bool any_rows() const override { return true; }
  int64_t packed_bytes() const override { return round_up(shape_.cols, kStrip) * words() * 4; }
  /// A copy of A whose rows begin at whole words.
  int64_t scratch_bytes() const override {
    return odd() ? std::max(shape_.rows[0], shape_.rows[1]) * words() * 4 : 0;
  }

  void pack(const void* b, void* packed, void*) const override {
    const char* const from = static_cast<const char*>(b);
    uint32_t* to = static_cast<uint32_t*>(packed);
    const int64_t size = size_of(shape_.dtype);
    for (int64_t j = 0; j < shape_.cols; j += kStrip, to += words() * kStrip) {
      const int64_t cols = std::min(kStrip, shape_.cols - j);
      if (shape_.transpose_b) {
        run_pass<PackTransposed>(Isa::kAvx512, from + j * shape_.b_ld * size, shape_.b_ld * size,
                                 cols, shape_.depth * size, to);
      } else if (bf16_) {
        run_pass<PackPairs>(Isa::kAvx512, reinterpret_cast<const uint16_t*>(from) + j, shape_.b_ld,
                            cols, shape_.depth, to);
      } else {
        for (int64_t k = 0; k < shape_.depth; ++k)
          std::memcpy(to + k * kStrip, from + (k * shape_.b_ld + j) * 4,
                      static_cast<size_t>(cols) * 4);
      }
    }
  }

  void run(int64_t rows, const void* a, const void* packed, int64_t first_col, float* c,
           void* scratch) const override {
    const uint32_t* left = static_cast<const uint32_t*>(a);
    if (odd()) left = padded(rows, static_cast<const char*>(a), static_cast<uint32_t*>(scratch));
    const int64_t width = shape_.cols;
    for (int64_t j = first_col / kStrip * kStrip; j < width; j += kStrip) {
      const uint32_t* const strip = static_cast<const uint32_t*>(packed) + j * words();
      const int64_t skipped = first_col >= j + kLanes ? kLanes : 0;
      for (int64_t r = 0; r < rows; r += kRows) {
        const Block block{left + r * words(),
                          words(),
                          strip + skipped,
                          words(),
                          c + r * width + j + skipped,
                          width,
                          std::min(kStrip, width - j) - skipped};
        const int64_t height = std::min(kRows, rows - r);
        const bool narrow = block.cols <= kLanes;
        const Multiply* const list = bf16_ ? (narrow ? kMultiply<true, 1> : kMultiply<true, 2>)
                                           : (narrow ? kMultiply<false, 1> : kMultiply<false, 2>);
        list[height - 1](block);
      }
    }
  }

 private:
  int64_t words() const { return bf16_ ? ceil_div(shape_.depth, 2) : shape_.depth; }
  bool odd() const { return bf16_ && shape_.depth % 2 != 0; }

  const uint32_t* padded(int64_t rows, const char* a, uint32_t* to) const {
    for (int64_t r = 0; r < rows; ++r) {
      to[(r + 1) * words() - 1] = 0;
      std::memcpy(to + r * words(), a + r * shape_.depth * 2,
                  static_cast<size_t>(shape_.depth) * 2);
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
    // AMX is faster than vectors.
    if (shape.dtype == DType::kBF16 && (has_matrix_unit() || !native_bf16()))
      return library_->panel(shape);
    return std::make_unique<const Avx512Panel>(shape);
  }

 private:
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
