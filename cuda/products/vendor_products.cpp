#include "cuda/products/vendor_products.hpp"

#include <map>
#include <optional>

#include "backend/matrix_rules.hpp"
#include "base/error.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/products/cublas_api.hpp"
#include "cuda/products/cublas_library.hpp"
#include "cuda/products/panels.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kProposals = 8;  // number of proposals that are checked

/// How products of a shape are computed. If `algorithm` is empty, naive loops are used.
struct Recipe {
  MatmulDescriptors descriptors;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  bool batches = false;                // the algorithm supports launches of several matrices
  std::map<int64_t, bool> takes = {};  // whether one launch can compute this number of matrices
};

/// Sets the layouts for `count` contiguous matrices.
void set_nominal(const MatmulDescriptors& descriptors, const ProductShape& s, int64_t count) {
  set_batch(descriptors.a, count, s.m * s.a_ld);
  set_batch(descriptors.b, count, (s.transpose_b ? s.n : s.k) * s.b_ld);
  set_batch(descriptors.c, count, s.m * s.c_ld);
  set_batch(descriptors.d, count, s.m * s.d_ld);
}

/// Returns the first proposal for the nominal batch that can also compute a single matrix, because
/// batches can have any size. If there is no such proposal, returns the first proposal for a single
/// matrix.
std::optional<cublasLtMatmulAlgo_t> chosen(const CublasLibrary& library, const ProductShape& shape,
                                           const MatmulDescriptors& descriptors) {
  const int64_t count = nominal_count(shape.m, shape.n);
  set_nominal(descriptors, shape, count);
  const auto proposed = library.proposed(descriptors, Depth::kWhole, kProposals);
  set_nominal(descriptors, shape, 1);
  for (const cublasLtMatmulAlgo_t& algorithm : proposed)
    if (count == 1 || library.takes(descriptors, algorithm)) return algorithm;
  if (count == 1) return std::nullopt;
  const auto single = library.proposed(descriptors, Depth::kWhole, 1);
  return single.empty() ? std::nullopt : std::optional(single.front());
}

Recipe make_recipe(const CublasLibrary& library, const ProductShape& shape) {
  Recipe recipe{words_of(shape), {}};
  recipe.algorithm = chosen(library, shape, recipe.descriptors);
  recipe.batches = recipe.algorithm && library.has_batches(*recipe.algorithm);
  return recipe;
}

class PinnedProducts final : public VendorProducts {
 public:
  PinnedProducts(Device& device, int index) : library_(device, index) {}

  std::string identity() const override {
    return cat("cublasLt ", static_cast<int64_t>(cublas_api().get_version()));
  }

  void reserve(int64_t m, int64_t n, int64_t k, DType dtype) override {
    for (const bool transpose_b : {false, true}) {
      Product p;
      p.a = {nullptr, dtype, m, k, cuda_ld(k, dtype), 1, 0};
      p.b = transpose_b ? MatrixBatch{nullptr, dtype, n, k, cuda_ld(k, dtype), 1, 0}
                        : MatrixBatch{nullptr, dtype, k, n, cuda_ld(n, dtype), 1, 0};
      p.c = {nullptr, dtype, m, n, cuda_ld(n, dtype), 1, 0};
      p.transpose_b = transpose_b;
      recipe_of(product_shape_of(p));
      for (int i = 0; m == n && panel_count(n) > 1 && i < panel_count(n); ++i)
        recipe_of(product_shape_of(panel_of(p, i)));
    }
  }

  void multiply(const Product& p, cudaStream_t stream) override {
    if (!p.symmetric || panel_count(p.c.rows) == 1) return multiply_whole(p, stream);
    for (int i = 0; i < panel_count(p.c.rows); ++i) multiply_whole(panel_of(p, i), stream);
  }

 private:
  void multiply_whole(const Product& p, cudaStream_t stream) {
    Recipe& recipe = recipe_of(product_shape_of(p));
    if (!recipe.algorithm) return naive_gemm(p, stream);
    set_batches(recipe.descriptors, p, p.c.count);
    const int64_t launches = takes(recipe, p.c.count) ? 1 : p.c.count;
    if (launches > 1) set_batches(recipe.descriptors, p, 1);
    const RelaxedCapture relaxed;  // the first launch of an algorithm may load it
    for (int64_t i = 0; i < launches; ++i)
      library_.launch(recipe.descriptors, *recipe.algorithm, p, i, stream);
  }

  /// Returns whether one launch computes `count` matrices. The layouts must be set for `count`
  /// matrices.
  bool takes(Recipe& recipe, int64_t count) {
    if (count == 1 || !recipe.batches) return count == 1;
    const auto found = recipe.takes.find(count);
    if (found != recipe.takes.end()) return found->second;
    const RelaxedCapture relaxed;
    return recipe.takes[count] = library_.takes(recipe.descriptors, *recipe.algorithm);
  }

  Recipe& recipe_of(const ProductShape& shape) {
    const auto found = recipes_.find(shape);
    if (found != recipes_.end()) return found->second;
    const RelaxedCapture relaxed;  // the library may allocate
    return recipes_.emplace(shape, make_recipe(library_, shape)).first->second;
  }

  const CublasLibrary library_;
  std::map<ProductShape, Recipe> recipes_;
};

}  // namespace

std::unique_ptr<VendorProducts> make_vendor_products(Device& device, int index) {
  return std::make_unique<PinnedProducts>(device, index);
}

}  // namespace muonrt::cuda
