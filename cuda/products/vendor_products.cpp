#include "cuda/products/vendor_products.hpp"

#include <map>
#include <optional>

#include "backend/matrix_rules.hpp"
#include "base/error.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/products/cublas_api.hpp"
#include "cuda/products/cublas_library.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kProposals = 8;  // that are looked at

/// How products of a shape are computed; without an algorithm by naive loops.
struct Recipe {
  MatmulDescriptors words;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  bool batches = false;                // the algorithm has launches of many matrices at all
  std::map<int64_t, bool> takes = {};  // so many in one; asked once
};

/// Layouts of a batch whose matrices follow one another.
void set_nominal(const MatmulDescriptors& words, const ProductShape& s, int64_t count) {
  set_batch(words.a, count, s.m * s.a_ld);
  set_batch(words.b, count, (s.transpose_b ? s.n : s.k) * s.b_ld);
  set_batch(words.c, count, s.m * s.c_ld);
  set_batch(words.d, count, s.m * s.d_ld);
}

/// The first that is proposed for the nominal batch and takes a single matrix, too, since any batch
/// may come; else the first for a single one.
std::optional<cublasLtMatmulAlgo_t> chosen(const CublasLibrary& library, const ProductShape& shape,
                                           const MatmulDescriptors& words) {
  const int64_t count = nominal_count(shape.m, shape.n);
  set_nominal(words, shape, count);
  const auto proposed = library.proposed(words, Depth::kWhole, kProposals);
  set_nominal(words, shape, 1);
  for (const cublasLtMatmulAlgo_t& algorithm : proposed)
    if (count == 1 || library.takes(words, algorithm)) return algorithm;
  if (count == 1) return std::nullopt;
  const auto single = library.proposed(words, Depth::kWhole, 1);
  return single.empty() ? std::nullopt : std::optional(single.front());
}

Recipe make_recipe(const CublasLibrary& library, const ProductShape& shape) {
  Recipe recipe{words_of(shape), {}};
  recipe.algorithm = chosen(library, shape, recipe.words);
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
    for (const bool transpose_b : {false, true})
      recipe_of({m, n, k, cuda_ld(k, dtype), cuda_ld(transpose_b ? k : n, dtype), cuda_ld(n, dtype),
                 cuda_ld(n, dtype), dtype, transpose_b});
  }

  void multiply(const Product& p, cudaStream_t stream) override {
    Recipe& recipe = recipe_of(product_shape_of(p));
    if (!recipe.algorithm) return naive_gemm(p, stream);
    set_batches(recipe.words, p, p.c.count);
    const int64_t launches = takes(recipe, p.c.count) ? 1 : p.c.count;
    if (launches > 1) set_batches(recipe.words, p, 1);
    const RelaxedCapture relaxed;  // the first launch of an algorithm may load it
    for (int64_t i = 0; i < launches; ++i)
      library_.launch(recipe.words, *recipe.algorithm, p, i, stream);
  }

 private:
  /// Of so many matrices, for which the layouts are set.
  bool takes(Recipe& recipe, int64_t count) {
    if (count == 1 || !recipe.batches) return count == 1;
    const auto found = recipe.takes.find(count);
    if (found != recipe.takes.end()) return found->second;
    const RelaxedCapture relaxed;
    return recipe.takes[count] = library_.takes(recipe.words, *recipe.algorithm);
  }

  Recipe& recipe_of(const ProductShape& shape) {
    const auto found = recipes_.find(shape);
    if (found != recipes_.end()) return found->second;
    const RelaxedCapture relaxed;  // the library allocates where it likes
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
