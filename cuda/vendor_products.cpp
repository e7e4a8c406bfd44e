#include "cuda/vendor_products.hpp"

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "cuda/cublas_api.hpp"
#include "cuda/guard.hpp"
#include "cuda/kernels.hpp"
#include "cuda/padding.hpp"

namespace muonrt::cuda {

namespace {

// Fixed, whatever memory is free: it is part of what decides the algorithm.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr uint32_t kOperandAlignment = 16;  // bytes

/// An object of the library, by its functions to make and to give back.
template <class Handle>
class Owner {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owner() = default;
  Owner(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  Owner(Owner&& other) noexcept { swap(other); }
  Owner& operator=(Owner&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Owner() {
    if (handle_) destroy_(handle_);
  }
  Handle get() const { return handle_; }

 private:
  void swap(Owner& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
  }
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

using Layout = Owner<cublasLtMatrixLayout_t>;

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// The library's matrices are column-major: each of ours is its transpose there.
Layout layout_of(int64_t rows, int64_t cols, int64_t ld, DType dtype) {
  const CublasApi& api = cublas_api();
  cublasLtMatrixLayout_t handle = nullptr;
  MUONRT_CUBLAS(api.layout_create(&handle, type_of(dtype), static_cast<uint64_t>(cols),
                                  static_cast<uint64_t>(rows), ld));
  return Layout(handle, api.layout_destroy);
}

void set_batch(const Layout& layout, const MatrixBatch& m) {
  const auto count = static_cast<int32_t>(m.count);
  MUONRT_CUBLAS(cublas_api().layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                        sizeof count));
  MUONRT_CUBLAS(cublas_api().layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                        &m.stride, sizeof m.stride));
}

/// What decides an algorithm: the shape of one matrix, never the number of them.
struct Shape {
  int64_t m, n, k, a_ld, b_ld, c_ld, d_ld;
  DType dtype;
  bool transpose_b;
  auto operator<=>(const Shape&) const = default;
};

/// How products of a shape are computed; without an algorithm by naive loops.
struct Recipe {
  Owner<cublasLtMatmulDesc_t> desc;
  Layout a, b, c, d;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  bool batches = false;                // the algorithm has launches of many matrices at all
  std::map<int64_t, bool> takes = {};  // so many in one; asked once
};

void choose_algorithm(cublasLtHandle_t handle, Recipe& recipe) {
  const CublasApi& api = cublas_api();
  cublasLtMatmulPreference_t raw = nullptr;
  MUONRT_CUBLAS(api.preference_create(&raw));
  const Owner<cublasLtMatmulPreference_t> preference(raw, api.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    MUONRT_CUBLAS(api.preference_set(raw, which, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // Sums over the depth stay in one accumulator, in order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kOperandAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kOperandAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kOperandAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kOperandAlignment);
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status =
      api.heuristic(handle, recipe.desc.get(), recipe.b.get(), recipe.a.get(), recipe.d.get(),
                    recipe.c.get(), raw, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  MUONRT_CUBLAS(status);
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return;
  recipe.algorithm = found.algo;
  int32_t supports = 0;
  size_t written = 0;
  MUONRT_CUBLAS(api.cap_get(&found.algo, CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT, &supports,
                            sizeof supports, &written));
  recipe.batches = supports != 0;
}

/// Whether the algorithm, chosen for one matrix, computes as many in one launch as the layouts say:
/// more may want another workspace.
bool takes_together(cublasLtHandle_t handle, const Recipe& recipe) {
  cublasLtMatmulHeuristicResult_t found = {};
  const cublasStatus_t status =
      cublas_api().algo_check(handle, recipe.desc.get(), recipe.b.get(), recipe.a.get(),
                              recipe.d.get(), recipe.c.get(), &*recipe.algorithm, &found);
  return status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= size_t{kWorkspaceBytes};
}

Recipe make_recipe(cublasLtHandle_t handle, const Shape& s) {
  const CublasApi& api = cublas_api();
  Recipe recipe;
  // f32 products are f32 to the last bit: no TF32, no emulation.
  cublasLtMatmulDesc_t desc = nullptr;
  MUONRT_CUBLAS(api.desc_create(
      &desc, s.dtype == DType::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
      CUDA_R_32F));
  recipe.desc = Owner<cublasLtMatmulDesc_t>(desc, api.desc_destroy);
  const cublasOperation_t first = s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  MUONRT_CUBLAS(api.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  recipe.a = layout_of(s.m, s.k, s.a_ld, s.dtype);
  recipe.b =
      s.transpose_b ? layout_of(s.n, s.k, s.b_ld, s.dtype) : layout_of(s.k, s.n, s.b_ld, s.dtype);
  recipe.c = layout_of(s.m, s.n, s.c_ld, s.dtype);
  recipe.d = layout_of(s.m, s.n, s.d_ld, s.dtype);
  choose_algorithm(handle, recipe);
  return recipe;
}

const void* at(const MatrixBatch& m, int64_t index) {
  return static_cast<const char*>(m.data) + index * m.stride * size_of(m.dtype);
}

/// cuBLASLt. C^T = op(B)^T A^T: our B is its first operand, our D its C, our C its D.
class CublasProducts final : public VendorProducts {
 public:
  explicit CublasProducts(Device& device) : workspace_(device, kWorkspaceBytes) {
    const CublasApi& api = cublas_api();
    cublasLtHandle_t handle = nullptr;
    const RelaxedCapture relaxed;
    MUONRT_CUBLAS(api.create(&handle));
    handle_ = Owner<cublasLtHandle_t>(handle, api.destroy);
  }

  std::string identity() const override {
    return cat("cublasLt ", static_cast<int64_t>(cublas_api().get_version()));
  }

  void reserve(int64_t m, int64_t n, int64_t k, DType dtype) override {
    for (const bool transpose_b : {false, true})
      recipe_of({m, n, k, padded_ld(k, dtype), padded_ld(transpose_b ? k : n, dtype),
                 padded_ld(n, dtype), padded_ld(n, dtype), dtype, transpose_b});
  }

  void multiply(const Product& p, cudaStream_t stream) override {
    const bool reads_d = p.d.data != nullptr && p.beta != 0.0f;
    const MatrixBatch& d = reads_d ? p.d : p.c;
    Recipe& recipe = recipe_of(
        {p.c.rows, p.c.cols, p.a.cols, p.a.ld, p.b.ld, p.c.ld, d.ld, p.a.dtype, p.transpose_b});
    if (!recipe.algorithm) return naive_gemm(p, stream);
    for (const MatrixBatch* m : {&p.a, &p.b, &p.c, &d})
      MUONRT_CHECK_INTERNAL(reinterpret_cast<uintptr_t>(m->data) % kOperandAlignment == 0 &&
                                m->stride * size_of(m->dtype) % kOperandAlignment == 0,
                            "operands at multiples of ", kOperandAlignment, " bytes");
    const float beta = reads_d ? p.beta : 0.0f;
    MatrixBatch a = p.a, b = p.b, c = p.c, from = d;
    const auto set_layouts = [&](int64_t count) {
      for (MatrixBatch* m : {&a, &b, &c, &from}) m->count = count;
      set_batch(recipe.a, a);
      set_batch(recipe.b, b);
      set_batch(recipe.c, c);
      set_batch(recipe.d, from);
    };
    set_layouts(p.c.count);
    const int64_t launches = takes(recipe, p.c.count) ? 1 : p.c.count;
    if (launches > 1) set_layouts(1);
    for (int64_t i = 0; i < launches; ++i)
      MUONRT_CUBLAS(cublas_api().matmul(handle_.get(), recipe.desc.get(), &p.alpha, at(b, i),
                                        recipe.b.get(), at(a, i), recipe.a.get(), &beta,
                                        at(from, i), recipe.d.get(), const_cast<void*>(at(c, i)),
                                        recipe.c.get(), &*recipe.algorithm, workspace_.data(),
                                        static_cast<size_t>(kWorkspaceBytes), stream));
  }

 private:
  /// Of so many matrices, for which the layouts are set.
  bool takes(Recipe& recipe, int64_t count) {
    if (count == 1 || !recipe.batches) return count == 1;
    const auto found = recipe.takes.find(count);
    if (found != recipe.takes.end()) return found->second;
    const RelaxedCapture relaxed;
    return recipe.takes[count] = takes_together(handle_.get(), recipe);
  }

  Recipe& recipe_of(const Shape& shape) {
    const auto found = recipes_.find(shape);
    if (found != recipes_.end()) return found->second;
    const RelaxedCapture relaxed;  // the library allocates where it likes
    return recipes_.emplace(shape, make_recipe(handle_.get(), shape)).first->second;
  }

  Buffer workspace_;
  Owner<cublasLtHandle_t> handle_;
  std::map<Shape, Recipe> recipes_;
};

}  // namespace

std::unique_ptr<VendorProducts> make_vendor_products(Device& device) {
  return std::make_unique<CublasProducts>(device);
}

}  // namespace muonrt::cuda
