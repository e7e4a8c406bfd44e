#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "host/gemm.hpp"
#include "reference/reference.hpp"
#include "support/tolerances.hpp"

/// Functions that the tests of matrix products on the host share: memory between red zones, the
/// kernels, and a check of one product.
namespace gemm_cases {

using muonrt::bf16;
using muonrt::DType;
using muonrt::host::GemmArgs;
using muonrt::host::GemmScratch;
using muonrt::host::Isa;
using muonrt::host::MatrixRef;
using muonrt::host::PanelProduct;
using muonrt::host::PanelShape;
using muonrt::host::ThreadPool;
using muonrt::host::TileKernel;

/// An array of bytes with red zones on both sides, at a given offset from a 64-byte boundary. Every
/// byte is initially 0xff, which is NaN in f32 and in bf16.
class RedZoned {
 public:
  RedZoned(int64_t bytes, int64_t offset)
      : bytes_(bytes), storage_(static_cast<size_t>(bytes + offset + 3 * kRedZone), 0xff) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (kRedZone - address % kRedZone) + kRedZone + offset;
  }
  RedZoned(RedZoned&&) = default;  // data_ stays valid, because moving a vector keeps its memory
  RedZoned& operator=(RedZoned&&) = default;
  unsigned char* data() { return data_; }
  bool red_zones_untouched() const {
    for (const unsigned char* p = storage_.data(); p != storage_.data() + storage_.size(); ++p) {
      if ((p < data_ || p >= data_ + bytes_) && *p != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kRedZone = 64;
  int64_t bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

/// A matrix whose padding columns and red zones are NaN.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t ld, int64_t offset_elements = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        ld_(ld),
        memory_(rows * ld * size_of(dtype), offset_elements * size_of(dtype)) {}
  Matrix(DType dtype, int64_t rows, int64_t cols)
      : Matrix(dtype, rows, cols, muonrt::host_ld(cols)) {}

  MatrixRef ref() { return {memory_.data(), dtype_, rows_, cols_, ld_}; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  double at(int64_t i, int64_t j) { return static_cast<double>(value(i, j)); }
  void set(int64_t i, int64_t j, double v) {
    const float x = static_cast<float>(v);
    const bf16 narrow = muonrt::to_bf16(x);
    if (dtype_ == DType::kF32) std::memcpy(place(i, j), &x, sizeof x);
    const uint16_t half = reference::half_bits(static_cast<double>(x));
    if (dtype_ == DType::kBF16) std::memcpy(place(i, j), &narrow, sizeof narrow);
    if (dtype_ == DType::kF16) std::memcpy(place(i, j), &half, sizeof half);
  }
  float value(int64_t i, int64_t j) {
    float x = 0;
    bf16 narrow{};
    if (dtype_ == DType::kF32) return std::memcpy(&x, place(i, j), sizeof x), x;
    std::memcpy(&narrow, place(i, j), sizeof narrow);
    return dtype_ == DType::kF16 ? static_cast<float>(reference::half_value(narrow.bits))
                                 : to_f32(narrow);
  }
  bool same_bits(int64_t i, int64_t j, Matrix& other, int64_t p, int64_t q) {
    return std::memcmp(place(i, j), other.place(p, q), static_cast<size_t>(size_of(dtype_))) == 0;
  }
  /// Compares only the elements, because padding and alignment may differ.
  bool same_bits(Matrix& other) {
    for (int64_t i = 0; i < rows_; ++i) {
      const size_t bytes = static_cast<size_t>(cols_ * size_of(dtype_));
      if (std::memcmp(place(i, 0), other.place(i, 0), bytes) != 0) return false;
    }
    return true;
  }
  bool symmetric_bits() {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        if (!same_bits(i, j, *this, j, i)) return false;
      }
    }
    return true;
  }
  bool surroundings_untouched() {
    for (int64_t i = 0; i < rows_; ++i) {
      const unsigned char* end = place(i, 0) + (ld_ - cols_) * size_of(dtype_);
      for (const unsigned char* p = place(i, 0); p != end; ++p) {
        if (p[cols_ * size_of(dtype_)] != 0xff) return false;
      }
    }
    return memory_.red_zones_untouched();
  }

 private:
  unsigned char* place(int64_t i, int64_t j) {
    return memory_.data() + (i * ld_ + j) * size_of(dtype_);
  }
  DType dtype_;
  int64_t rows_, cols_, ld_;
  RedZoned memory_;
};

/// Fills the matrix with uniformly distributed values in [-0.5, 0.5), which depend only on the seed
/// and the index of the element.
inline void fill_uniform(Matrix& m, uint32_t seed) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.cols(); ++j) {
      m.set(i, j, static_cast<double>(random()) * 0x1p-32 - 0.5);
    }
  }
}

inline void fill_symmetric(Matrix& m, uint32_t seed) {
  fill_uniform(m, seed);
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < i; ++j) m.set(i, j, m.at(j, i));
  }
}

/// Wraps a kernel without its native bf16 products, and counts the panels that the kernel creates.
class Widened final : public TileKernel {
 public:
  explicit Widened(const TileKernel& kernel) : kernel_(kernel) {}
  const char* name() const override { return "widened"; }
  std::string identity() const override { return kernel_.identity() + " without bf16"; }
  bool supports_bf16() const override { return false; }
  std::unique_ptr<const PanelProduct> panel(const PanelShape& shape) const override {
    ++panels;
    return kernel_.panel(shape);
  }
  mutable int panels = 0;

 private:
  const TileKernel& kernel_;
};

/// Returns all available kernels.
inline std::vector<const TileKernel*> kernels() {
  std::vector<const TileKernel*> list{&muonrt::host::portable_kernel()};
  const TileKernel* const library = muonrt::host::onednn_kernel();
  if (library != nullptr) list.push_back(library);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512})
    if (const TileKernel* vectors = muonrt::host::vector_kernel(isa)) list.push_back(vectors);
  if (list.back()->supports_bf16()) {
    static const Widened widened(*list.back());
    list.push_back(&widened);
  }
  if (library != nullptr && library->supports_bf16()) {
    static const Widened widened_library(*library);
    list.push_back(&widened_library);
  }
  return list;
}

/// Computes the product `args` with its own workspace. Returns false if the kernel wrote outside of
/// the workspace.
inline bool multiply(const TileKernel& kernel, const GemmArgs& args, int threads = 1,
                     int64_t scratch_offset = 0, int64_t packed = GemmScratch::kPackedBytes) {
  ThreadPool pool(threads);
  GemmScratch scratch(kernel, packed);
  const int64_t bytes = scratch.bytes_for(args, threads);
  RedZoned memory(bytes, scratch_offset);
  scratch.set_workspace(memory.data(), bytes);
  gemm(args, pool, scratch);
  return memory.red_zones_untouched();
}

/// Returns the values of a matrix in float64, or their absolute values.
inline reference::Matrix exact(Matrix& m, bool magnitudes) {
  reference::Matrix out(m.rows(), m.cols());
  for (int64_t i = 0; i < m.rows(); ++i)
    for (int64_t j = 0; j < m.cols(); ++j)
      out(i, j) = magnitudes ? std::fabs(m.at(i, j)) : m.at(i, j);
  return out;
}

/// Returns the number of elements of C that are NaN, or that differ from alpha A op(B) + beta D +
/// gamma I by more than the rounding error of the sum.
/// @param args  The product. Only its factors and flags are used.
/// @param d     The matrix D, or null if the product has no D.
inline int64_t count_wrong(const GemmArgs& args, Matrix& a, Matrix& b, Matrix* d, Matrix& c) {
  const auto product = [&](bool magnitudes) {
    const reference::Matrix right = exact(b, magnitudes);
    return reference::multiply(exact(a, magnitudes),
                               args.transpose_b ? reference::transpose(right) : right);
  };
  const reference::Matrix sums = product(false), sizes = product(true);
  const DType dtype = args.c.dtype;
  const double alpha = args.alpha, beta = args.beta, gamma = args.gamma;
  // The tolerance includes half the smallest f16 value, and for other dtypes subnormal values,
  // because the bf16 instructions of x86 flush them to zero.
  const double least = dtype == DType::kF16 ? 0x1p-25 : 0x1p-100;
  int64_t wrong = 0;
  for (int64_t i = 0; i < c.rows(); ++i) {
    for (int64_t j = 0; j < c.cols(); ++j) {
      const double added = d ? beta * d->at(i, j) : 0.0, diagonal = i == j ? gamma : 0.0;
      const double expected = alpha * sums(i, j) + added + diagonal;
      const double size = std::fabs(alpha) * sizes(i, j) + std::fabs(added) + std::fabs(diagonal);
      const double bound = tolerance::product(a.cols(), size, expected, dtype) + least;
      if (!(std::fabs(c.at(i, j) - expected) <= bound)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace gemm_cases
