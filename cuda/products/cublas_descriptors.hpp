#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <utility>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// Bytes of scratch that a product may use. Fixed, whatever memory is free: it is part of what
/// decides the algorithm.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;
/// Bytes at whose multiples every matrix of a batch begins, as algorithms are told.
constexpr uint32_t kCublasAlignment = 16;

/// An object of the library, by its functions to make and to give back.
template <class Handle>
class CublasObject {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  CublasObject() = default;
  CublasObject(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  CublasObject(CublasObject&& other) noexcept { swap(other); }
  CublasObject& operator=(CublasObject&& other) noexcept {
    swap(other);
    return *this;
  }
  ~CublasObject() {
    if (handle_) destroy_(handle_);
  }
  Handle get() const { return handle_; }

 private:
  void swap(CublasObject& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
  }
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

using CublasLayout = CublasObject<cublasLtMatrixLayout_t>;
using CublasPreference = CublasObject<cublasLtMatmulPreference_t>;

/// C = A op(B) + D as it decides an algorithm: one matrix of each, never the number of them.
struct ProductShape {
  int64_t m, n, k, a_ld, b_ld, c_ld, d_ld;  // ld: elements between rows
  DType dtype;
  bool transpose_b;
  auto operator<=>(const ProductShape&) const = default;
};
ProductShape product_shape_of(const Product& product);

/// Matrices of the batch for which a shape's algorithm is chosen, whatever the batches that it is
/// used for: so many as give each of an H200's 132 SMs two tiles of 128 x 256, but no more than
/// 128. Of the shape alone, so the bits are too.
constexpr int64_t nominal_count(int64_t m, int64_t n) {
  const int64_t all = ((m + 127) / 128) * ((n + 255) / 256), wanted = 2 * 132;
  const int64_t tiles = all > 0 ? all : 1;
  const int64_t count = (wanted + tiles - 1) / tiles;
  return count < 128 ? count : 128;
}
static_assert(nominal_count(0, 1) == 128 && nominal_count(4096, 4096) == 1);

/// A product in the library's words. Its matrices are column-major: each of ours is its transpose
/// there, so C^T = op(B)^T A^T has our B for its first operand, our D for its C and our C for its
/// D.
struct MatmulDescriptors {
  CublasObject<cublasLtMatmulDesc_t> desc;
  CublasLayout a, b, c, d;  // ours
};

/// Errors of all: DEVICE if the library refuses, NOT_SUPPORTED if there is none.
MatmulDescriptors words_of(const ProductShape& shape);
void set_batch(const CublasLayout& layout, int64_t count, int64_t stride);
/// `count` matrices of each operand, as far apart as the product's are.
void set_batches(const MatmulDescriptors& words, const Product& product, int64_t count);
/// What D is called there, which the library reads where beta is not 0: ours, or C in its place.
const MatrixBatch& addend_of(const Product& product);

/// Sums over the depth: in one accumulator, or in parts that are added up in any of the library's
/// ways, some of them rounded to the result's dtype.
enum class Depth { kWhole, kInParts };
/// What an algorithm must keep to: scratch, alignment, sums.
CublasPreference product_preference(Depth depth);

}  // namespace muonrt::cuda
