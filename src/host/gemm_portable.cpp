#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "host/gemm_tile.hpp"
#include "host/isa.hpp"

namespace muonrt::host {

namespace {

// Every element of a tile is summed over the depth from first to last, one product at a time. The
// result is therefore bitwise identical on every machine and with every blocking.

constexpr int64_t kStrip = 8;  // number of columns that are summed together, in one or two vectors
// Number of rows that are summed together. Their sums use 12 of the 16 vector registers.
constexpr int64_t kRows = 6;
constexpr int64_t kDepth = 256;  // number of rows of a strip that stay in the L1 cache

using Vector = float __attribute__((vector_size(kVectorBytes)));
constexpr int64_t kVectors = kStrip * int64_t{sizeof(float)} / kVectorBytes;

struct Strip {
  Vector part[kVectors];
};

/// Returns the first `bytes` bytes of a strip, padded with zeros. The result is returned by value,
/// because the compiler does not keep a variable in a register if its address is taken.
MUONRT_ALWAYS_INLINE Strip load(const float* from, size_t bytes) {
  Strip strip = {};
  std::memcpy(&strip, from, bytes);
  return strip;
}

/// Computes c += a * strip over `depth`. Keeps Rows x kStrip values at a time in registers.
/// @param a      Rows x depth, with leading dimension lda.
/// @param strip  depth x kStrip, dense.
/// @param c      leading dimension ldc; the first `cols` columns are read and written.
template <int Rows>
MUONRT_ALWAYS_INLINE void multiply_rows(const float* __restrict a, int64_t lda,
                                        const float* __restrict strip, int64_t depth,
                                        float* __restrict c, int64_t ldc, int64_t cols) {
  const size_t bytes = static_cast<size_t>(cols) * sizeof(float);
  Strip sum[Rows];
  for (int r = 0; r < Rows; ++r) sum[r] = load(c + r * ldc, bytes);
  for (int64_t k = 0; k < depth; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      Vector b;
      std::memcpy(&b, strip + k * kStrip + v * (kStrip / kVectors), sizeof b);
      for (int r = 0; r < Rows; ++r) sum[r].part[v] += a[r * lda + k] * b;
    }
  }
  for (int r = 0; r < Rows; ++r) {
    const Strip whole = sum[r];
    std::memcpy(c + r * ldc, &whole, bytes);
  }
}

/// Multiplies `rows` rows of A by one strip.
struct MultiplyStrip {
  static MUONRT_ALWAYS_INLINE void run(int64_t rows, const float* a, int64_t lda,
                                       const float* strip, int64_t depth, float* c, int64_t ldc,
                                       int64_t cols) {
    int64_t r = 0;
    for (; r + kRows <= rows; r += kRows)
      multiply_rows<kRows>(a + r * lda, lda, strip, depth, c + r * ldc, ldc, cols);
    for (; r < rows; ++r) multiply_rows<1>(a + r * lda, lda, strip, depth, c + r * ldc, ldc, cols);
  }
};

class PortablePanel final : public PanelProduct {
 public:
  explicit PortablePanel(const PanelShape& shape) : shape_(shape) {}

  int64_t packed_bytes() const override {
    return round_up(shape_.cols, kStrip) * shape_.depth * int64_t{sizeof(float)};
  }
  int64_t scratch_bytes() const override { return 0; }

  /// Packs B into strips of kStrip columns, each depth x kStrip. The last strip is padded with
  /// zeros.
  void pack(const void* b, void* packed, void*) const override {
    const float* from = static_cast<const float*>(b);
    float* to = static_cast<float*>(packed);
    const int64_t step_k = shape_.transpose_b ? 1 : shape_.b_ld;
    const int64_t step_j = shape_.transpose_b ? shape_.b_ld : 1;
    for (int64_t first = 0; first < shape_.cols; first += kStrip) {
      const int64_t cols = std::min(kStrip, shape_.cols - first);
      for (int64_t k = 0; k < shape_.depth; ++k, to += kStrip) {
        for (int64_t j = 0; j < kStrip; ++j) {
          to[j] = j < cols ? from[k * step_k + (first + j) * step_j] : 0.0f;
        }
      }
    }
  }

  void run(int64_t rows, const void* a, const void* packed, int64_t, float* c,
           void*) const override {
    const float* left = static_cast<const float*>(a);
    const float* right = static_cast<const float*>(packed);
    const Isa isa = best_isa();
    std::fill(c, c + rows * shape_.cols, 0.0f);
    for (int64_t k = 0; k < shape_.depth; k += kDepth) {
      const int64_t depth = std::min(kDepth, shape_.depth - k);
      for (int64_t j = 0; j < shape_.cols; j += kStrip) {
        const float* strip = right + j * shape_.depth + k * kStrip;
        const int64_t cols = std::min(kStrip, shape_.cols - j);
        run_pass<MultiplyStrip>(isa, rows, left + k, shape_.depth, strip, depth, c + j, shape_.cols,
                                cols);
      }
    }
  }

 private:
  PanelShape shape_;
};

class PortableKernel final : public TileKernel {
 public:
  const char* name() const override { return "portable"; }
  std::string identity() const override { return "portable 1"; }
  bool supports_bf16() const override { return false; }
  std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const override {
    return std::make_unique<const PortablePanel>(shape);
  }
};

}  // namespace

const TileKernel& portable_kernel() {
  static const PortableKernel kernel;
  return kernel;
}

}  // namespace muonrt::host
