#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <utility>

#include "backend/ops.hpp"

namespace muonrt::cuda {

/// Size of the scratch memory that a product may use, in bytes. It does not depend on the amount of
/// free memory, because the size influences the choice of the algorithm.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;
/// Every matrix of a batch begins at a multiple of this many bytes, so algorithms may rely on it.
constexpr uint32_t kCublasAlignment = 16;

/// Holds an object of the library, and destroys it.
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

/// The properties of C = A op(B) + D that select an algorithm. They describe one matrix of each
/// operand, and do not include the number of matrices.
struct ProductShape {
  int64_t m, n, k, a_ld, b_ld, c_ld, d_ld;  // ld: number of elements between rows
  DType dtype;
  bool transpose_b;
  auto operator<=>(const ProductShape&) const = default;
};
ProductShape product_shape_of(const Product& product);

/// Returns the number of matrices for which a shape's algorithm is chosen. The algorithm is then
/// used for batches of any size. The number is large enough to give each of an H200's 132 SMs two
/// tiles of 128 x 256, but at most 128. It depends only on the shape, so that the bits of a result
/// do not depend on the number of matrices.
constexpr int64_t nominal_count(int64_t m, int64_t n) {
  const int64_t all = ((m + 127) / 128) * ((n + 255) / 256), wanted = 2 * 132;
  const int64_t tiles = all > 0 ? all : 1;
  const int64_t count = (wanted + tiles - 1) / tiles;
  return count < 128 ? count : 128;
}
static_assert(nominal_count(0, 1) == 128 && nominal_count(4096, 4096) == 1);

/// The descriptors of a product. cuBLASLt's matrices are column-major, so the library reads each of
/// our matrices as its transpose. The library computes C^T = op(B)^T A^T: its first operand is our
/// B, its C is our D, and its D is our C.
struct MatmulDescriptors {
  CublasObject<cublasLtMatmulDesc_t> desc;
  CublasLayout a, b, c, d;  // layouts of our operands
};

/// Errors of the following functions: DEVICE if the library returns an error, NOT_SUPPORTED if
/// there is no library.
MatmulDescriptors words_of(const ProductShape& shape);
void set_batch(const CublasLayout& layout, int64_t count, int64_t stride);
/// Sets `count` matrices for each operand, with the strides of the product.
void set_batches(const MatmulDescriptors& descriptors, const Product& product, int64_t count);
/// Returns the operand that the library reads as its C if beta is not 0. It is our D, or our C if
/// there is no D.
const MatrixBatch& addend_of(const Product& product);

/// How a product is summed over its depth: in one accumulator, or in parts that the library adds.
/// In some algorithms, the library rounds the parts to the dtype of the result before it adds them.
enum class Depth { kWhole, kInParts };
/// Returns restrictions on the choice of algorithms: the amount of scratch memory, the alignment,
/// and the kind of sum.
CublasPreference product_preference(Depth depth);

}  // namespace muonrt::cuda
