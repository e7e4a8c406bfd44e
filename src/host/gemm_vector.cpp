#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

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
// the blocking does not affect its bits.

/// Number of words in a part of the depth. A part is summed completely before the next one begins.
/// With this number, a part of the rows stays in the L2 cache.
constexpr int64_t kDepthWords = 512;

/// Part of a tile: up to kBlockRows rows, and up to kStripCols columns.
struct TileBlock {
  const char* a;          // bf16 may begin at an odd multiple of two bytes
  int64_t a_bytes;        // distance between rows
  const uint32_t* strip;  // words x kStripCols
  int64_t words;
  float* c;
  int64_t c_ld, cols;
  bool add;
};
using Multiply = void (*)(const TileBlock&);

struct Avx512 {
  static constexpr Isa kIsa = Isa::kAvx512;
  static constexpr int64_t kLanes = 16;     // words in a vector
  static constexpr int64_t kBlockRows = 8;  // number of rows that are summed together

  /// Computes c = a * strip, or c += a * strip. Also runs f32 products on machines without
  /// AVX512_BF16, because the compiler emits these instructions only for intrinsics that need them.
  template <bool kBf16, int kHeight, int kVectors>
  __attribute__((target("avx512f,avx512bf16"))) static void multiply(const TileBlock& block) {
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
    for (int64_t k = 0; k < block.words; ++k, strip += 2 * kLanes) {
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
};

struct Avx2 {
  static constexpr Isa kIsa = Isa::kAvx2;
  static constexpr int64_t kLanes = 8;
  static constexpr int64_t kBlockRows = 6;

  /// Computes the same products as Avx512, but only in f32.
  template <bool, int kHeight, int kVectors>
  __attribute__((target("avx2,fma"))) static void multiply(const TileBlock& block) {
    __m256 sum[kHeight][kVectors];
    int64_t cols[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      cols[v] = std::clamp<int64_t>(block.cols - v * kLanes, 0, kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kHeight; ++r) {
        const float* const c = block.c + r * block.c_ld + v * kLanes;
        sum[r][v] = _mm256_setzero_ps();
        if (block.add)
          sum[r][v] = cols[v] == kLanes ? _mm256_loadu_ps(c) : _mm256_maskload_ps(c, mask(cols[v]));
      }
    }
    const uint32_t* strip = block.strip;
    for (int64_t k = 0; k < block.words; ++k, strip += 2 * kLanes) {
      __m256 b[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        b[v] = _mm256_loadu_ps(reinterpret_cast<const float*>(strip) + v * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kHeight; ++r) {
        const __m256 a =
            _mm256_broadcast_ss(reinterpret_cast<const float*>(block.a + r * block.a_bytes) + k);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_fmadd_ps(a, b[v], sum[r][v]);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 6
      for (int r = 0; r < kHeight; ++r) {
        float* const c = block.c + r * block.c_ld + v * kLanes;
        if (cols[v] == kLanes) {
          _mm256_storeu_ps(c, sum[r][v]);
        } else {
          _mm256_maskstore_ps(c, mask(cols[v]), sum[r][v]);  // slow on some processors
        }
      }
    }
  }

 private:
  __attribute__((target("avx2"))) static __m256i mask(int64_t cols) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(cols)), lane);
  }
};

/// The number of columns of a packed strip.
template <class V>
constexpr int64_t kStripCols = 2 * V::kLanes;

/// The functions for blocks of 1, 2, ..., V::kBlockRows rows.
template <class V, bool kBf16, int kVectors>
constexpr auto kMultiply = []<int... i>(std::integer_sequence<int, i...>) {
  return std::array<Multiply, sizeof...(i)>{V::template multiply<kBf16, i + 1, kVectors>...};
}
(std::make_integer_sequence<int, V::kBlockRows>());

/// Packs the columns of one strip from a B that is stored as cols x depth.
template <class V>
struct PackTransposed {
  static MUONRT_ALWAYS_INLINE void run(const char* b, int64_t ld_bytes, int64_t cols,
                                       int64_t depth_bytes, uint32_t* to) {
    for (int64_t first = 0; first < cols; first += kLanes)
      for (int64_t at = 0; at < depth_bytes; at += kBytes)
        pack_square(b + first * ld_bytes + at, ld_bytes, std::min(kLanes, cols - first),
                    std::min(kBytes, depth_bytes - at), to + at / 4 * kStrip + first);
  }

 private:
  static constexpr int64_t kLanes = V::kLanes, kStrip = kStripCols<V>, kBytes = 4 * kLanes;

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
    typename VectorOf<uint32_t, kLanes>::type rows[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) std::memcpy(&rows[j], from + j * ld_bytes, sizeof rows[j]);
    transpose<kLanes>(rows);
#pragma GCC unroll 16
    for (int k = 0; k < kLanes; ++k)
      if (4 * k < bytes) std::memcpy(to + k * kStrip, &rows[k], sizeof rows[k]);
  }
};

/// Packs the columns of one strip from a bf16 B that is stored as depth x cols.
template <class V>
struct PackPairs {
  static MUONRT_ALWAYS_INLINE void run(const uint16_t* b, int64_t ld, int64_t cols, int64_t depth,
                                       uint32_t* to) {
    for (int64_t k = 0; k < depth; k += 2, to += kStrip) {
      const uint16_t* const low = b + k * ld;
      const uint16_t* const high = low + ld;
      if (k + 1 == depth) {
        for (int64_t j = 0; j < kStrip; ++j) to[j] = j < cols ? low[j] : 0;
      } else if (cols == kStrip) {
        for (int64_t j = 0; j < kStrip; ++j) to[j] = pair(low[j], high[j]);
      } else {
        for (int64_t j = 0; j < kStrip; ++j) to[j] = j < cols ? pair(low[j], high[j]) : 0;
      }
    }
  }

 private:
  static constexpr int64_t kStrip = kStripCols<V>;

  static MUONRT_ALWAYS_INLINE uint32_t pair(uint16_t low, uint16_t high) {
    return low | static_cast<uint32_t>(high) << 16;
  }
};

template <class V>
class VectorPanel final : public PanelProduct {
 public:
  explicit VectorPanel(const PanelShape& shape)
      : shape_(shape), bf16_(shape.dtype == DType::kBF16) {}

  bool any_rows() const override { return true; }
  int64_t packed_bytes() const override { return round_up(shape_.cols, kStrip) * words() * 4; }
  /// Returns the size of a copy of A whose rows begin at whole words.
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
        run_pass<PackTransposed<V>>(V::kIsa, from + j * shape_.b_ld * size, shape_.b_ld * size,
                                    cols, shape_.depth * size, to);
      } else if (bf16_) {
        run_pass<PackPairs<V>>(V::kIsa, reinterpret_cast<const uint16_t*>(from) + j, shape_.b_ld,
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
    const char* left = static_cast<const char*>(a);
    if (odd()) left = padded(rows, left, static_cast<char*>(scratch));
    for (int64_t k = 0; k < words(); k += kDepthWords)
      run_depth(rows, left, static_cast<const uint32_t*>(packed), first_col, k, c);
  }

 private:
  int64_t words() const { return bf16_ ? ceil_div(shape_.depth, 2) : shape_.depth; }
  bool odd() const { return bf16_ && shape_.depth % 2 != 0; }

  /// Adds the products of the part of the depth that begins at word `begin`.
  void run_depth(int64_t rows, const char* a, const uint32_t* packed, int64_t first_col,
                 int64_t begin, float* c) const {
    const int64_t width = shape_.cols, row_bytes = 4 * words();
    const int64_t depth = std::min(kDepthWords, words() - begin);
    for (int64_t j = first_col / kStrip * kStrip; j < width; j += kStrip) {
      const int64_t skipped = first_col >= j + V::kLanes ? V::kLanes : 0;
      const uint32_t* const strip = packed + j * words() + begin * kStrip + skipped;
      const int64_t cols = std::min(kStrip, width - j) - skipped;
      const auto& list =
          bf16_ ? (cols <= V::kLanes ? kMultiply<V, true, 1> : kMultiply<V, true, 2>)
                : (cols <= V::kLanes ? kMultiply<V, false, 1> : kMultiply<V, false, 2>);
      // The blocks have nearly equal heights: a block of few rows has too few independent sums to
      // hide the latency of an instruction.
      int64_t blocks = ceil_div(rows, V::kBlockRows);
      for (int64_t r = 0; r < rows; --blocks) {
        const int64_t height = ceil_div(rows - r, blocks);
        list[static_cast<size_t>(height - 1)]({a + r * row_bytes + 4 * begin, row_bytes, strip,
                                               depth, c + r * width + j + skipped, width, cols,
                                               begin > 0});
        r += height;
      }
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

  static constexpr int64_t kStrip = kStripCols<V>;

  PanelShape shape_;
  bool bf16_;
};

template <class V>
class VectorKernel final : public TileKernel {
 public:
  explicit VectorKernel(const TileKernel* library) : library_(library) {}

  const char* name() const override { return name_of(V::kIsa); }
  std::string identity() const override {
    return cat(name(), " 1", native_bf16() ? " bf16" : "",
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
    return std::make_unique<const VectorPanel<V>>(shape);
  }
  int64_t largest_tile(DType dtype) const override {
    return computes(dtype) ? kSmallTile : library_->largest_tile(dtype);
  }

 private:
  /// Returns whether this kernel computes the products. The library computes bf16 products instead
  /// if it uses AMX, or if there are no instructions for bf16.
  bool computes(DType dtype) const {
    return dtype == DType::kF32 || (native_bf16() && !has_matrix_unit());
  }
  static bool native_bf16() {
    return V::kIsa == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
  }
  const TileKernel* library_;
};

}  // namespace

const TileKernel* vector_kernel(Isa isa) {
  static const VectorKernel<Avx512> avx512(onednn_kernel());
  static const VectorKernel<Avx2> avx2(onednn_kernel());
  if (isa > best_isa()) return nullptr;
  if (isa == Isa::kAvx512) return &avx512;
  return isa == Isa::kAvx2 && __builtin_cpu_supports("fma") ? &avx2 : nullptr;
}

}  // namespace muonrt::host

#else

namespace muonrt::host {
const TileKernel* vector_kernel(Isa) { return nullptr; }
}  // namespace muonrt::host

#endif
