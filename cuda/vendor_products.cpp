#include "cuda/vendor_products.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "cuda/cublas_api.hpp"
#include "cuda/cublas_words.hpp"
#include "cuda/guard.hpp"
#include "cuda/kernels.hpp"
#include "cuda/padding.hpp"

namespace muonrt::cuda {

namespace {

/// How products of a shape are computed; without an algorithm by naive loops.
struct Recipe {
  ProductWords words;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  bool batches = false;                // the algorithm has launches of many matrices at all
  std::map<int64_t, bool> takes = {};  // so many in one; asked once
};

void choose_algorithm(cublasLtHandle_t handle, Recipe& recipe) {
  const CublasApi& api = cublas_api();
  const CublasPreference preference = product_preference();
  const ProductWords& w = recipe.words;
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = api.heuristic(handle, w.desc.get(), w.b.get(), w.a.get(), w.d.get(),
                                              w.c.get(), preference.get(), 1, &found, &count);
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
  const ProductWords& w = recipe.words;
  const cublasStatus_t status = cublas_api().algo_check(
      handle, w.desc.get(), w.b.get(), w.a.get(), w.d.get(), w.c.get(), &*recipe.algorithm, &found);
  return status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= size_t{kCublasWorkspace};
}

Recipe make_recipe(cublasLtHandle_t handle, const ProductShape& shape) {
  Recipe recipe{words_of(shape), {}};
  choose_algorithm(handle, recipe);
  return recipe;
}

const void* at(const MatrixBatch& m, int64_t index) {
  return static_cast<const char*>(m.data) + index * m.stride * size_of(m.dtype);
}

/// The library's handle on a GPU. It is kept for the next one that asks, never destroyed: that
/// would wait for all of the GPU's work, a caller's and another optimizer's too.
class Handle {
 public:
  explicit Handle(int device) : device_(device) {
    const std::lock_guard lock(idle().mutex);
    auto& mine = idle().of[device];
    if (mine.empty()) {
      const RelaxedCapture relaxed;
      MUONRT_CUBLAS(cublas_api().create(&handle_));
      mine.reserve(mine.capacity() + 1);  // so that it comes back without fail
    } else {
      handle_ = mine.back();
      mine.pop_back();
    }
  }
  ~Handle() {
    const std::lock_guard lock(idle().mutex);
    idle().of[device_].push_back(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t get() const { return handle_; }

 private:
  struct Idle {
    std::mutex mutex;
    std::map<int, std::vector<cublasLtHandle_t>> of;  // devices
  };
  static Idle& idle() {
    static Idle* const all = new Idle();
    return *all;
  }

  const int device_;
  cublasLtHandle_t handle_ = nullptr;
};

class CublasProducts final : public VendorProducts {
 public:
  CublasProducts(Device& device, int index)
      : workspace_(device, kCublasWorkspace), handle_(index) {}

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
      MUONRT_CHECK_INTERNAL(reinterpret_cast<uintptr_t>(m->data) % kCublasAlignment == 0 &&
                                m->stride * size_of(m->dtype) % kCublasAlignment == 0,
                            "operands at multiples of ", kCublasAlignment, " bytes");
    const float beta = reads_d ? p.beta : 0.0f;
    const auto set_layouts = [&](int64_t count) {
      set_batch(recipe.words.a, count, p.a.stride);
      set_batch(recipe.words.b, count, p.b.stride);
      set_batch(recipe.words.c, count, p.c.stride);
      set_batch(recipe.words.d, count, d.stride);
    };
    set_layouts(p.c.count);
    const int64_t launches = takes(recipe, p.c.count) ? 1 : p.c.count;
    if (launches > 1) set_layouts(1);
    const ProductWords& w = recipe.words;
    const RelaxedCapture relaxed;  // the first launch of an algorithm may load it
    for (int64_t i = 0; i < launches; ++i)
      MUONRT_CUBLAS(cublas_api().matmul(
          handle_.get(), w.desc.get(), &p.alpha, at(p.b, i), w.b.get(), at(p.a, i), w.a.get(),
          &beta, at(d, i), w.d.get(), const_cast<void*>(at(p.c, i)), w.c.get(), &*recipe.algorithm,
          workspace_.data(), static_cast<size_t>(kCublasWorkspace), stream));
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

  Recipe& recipe_of(const ProductShape& shape) {
    const auto found = recipes_.find(shape);
    if (found != recipes_.end()) return found->second;
    const RelaxedCapture relaxed;  // the library allocates where it likes
    return recipes_.emplace(shape, make_recipe(handle_.get(), shape)).first->second;
  }

  Buffer workspace_;
  const Handle handle_;
  std::map<ProductShape, Recipe> recipes_;
};

}  // namespace

std::unique_ptr<VendorProducts> make_vendor_products(Device& device, int index) {
  return std::make_unique<CublasProducts>(device, index);
}

}  // namespace muonrt::cuda
