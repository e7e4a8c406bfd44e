#include "command/bench/fastest_products.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/products/cublas_api.hpp"
#include "cuda/products/cublas_library.hpp"
#include "cuda/products/vendor_products.hpp"

namespace muonrt::tool {

using namespace cuda;

namespace {

constexpr int kProposals = 8;  // for the whole batch, and the same number for single matrices
constexpr int kRounds = 3;     // the fastest round is used
constexpr double kRegionMs = 0.3;
constexpr int64_t kMaxRepeats = 20;
constexpr int64_t kFlushBytes = int64_t{64} << 20;  // more than an L2 of 50 MiB
constexpr int64_t kMaxWaitMs = 20'000;              // for one measurement

/// A way to compute a batch: with one launch, or with one launch for each matrix.
struct Way {
  cublasLtMatmulAlgo_t algorithm;
  int64_t per_launch;  // number of matrices
  int64_t repeats = 1;
  double ms = INFINITY;
};

/// The shape of a product, the number of matrices and their strides.
struct BatchShape {
  ProductShape shape;
  int64_t count, a_stride, b_stride, c_stride, d_stride;
  auto operator<=>(const BatchShape&) const = default;
};

class FastestProducts final : public VendorProducts {
 public:
  FastestProducts(Device& device, int index)
      : device_(device),
        library_(device, index),
        clock_(Buffer::shared(device, 2 * kMaxRepeats * sizeof(int64_t))),
        flush_(device, kFlushBytes) {}

  std::string identity() const override {
    return cat("cublasLt ", static_cast<int64_t>(cublas_api().get_version()),
               ", the fastest for each batch");
  }

  /// Does nothing, because the batch is not yet known.
  void reserve(int64_t, int64_t, int64_t, DType) override {}

  void multiply(const Product& p, cudaStream_t stream) override {
    const BatchShape batch{product_shape_of(p), p.c.count,  p.a.stride,
                           p.b.stride,          p.c.stride, addend_of(p).stride};
    auto found = known_.find(batch);
    if (found == known_.end()) {
      MatmulDescriptors words = words_of(batch.shape);
      const Way way = fastest(words, p, stream);
      found = known_.emplace(batch, std::pair(std::move(words), way)).first;
    }
    launch(found->second.first, found->second.second, p, stream);
  }

 private:
  void launch(const MatmulDescriptors& words, const Way& way, const Product& p,
              cudaStream_t stream) const {
    set_batches(words, p, way.per_launch);
    for (int64_t i = 0; i < p.c.count; i += way.per_launch)
      library_.launch(words, way.algorithm, p, i, stream);
  }

  /// Returns the time of one run in milliseconds. The operands are not in L2. The memsets take
  /// longer than the host needs to enqueue the runs, so the time does not include waiting for the
  /// host.
  double ms_of(const MatmulDescriptors& words, const Way& way, const Product& p,
               cudaStream_t stream) {
    auto* const times = clock_.as<int64_t>();
    for (int64_t i = 0; i < way.repeats; ++i) {
      MUONRT_CUDA(cudaMemsetAsync(flush_.data(), 0, static_cast<size_t>(flush_.bytes()), stream));
      write_clock(times + 2 * i, stream);
      launch(words, way, p, stream);
      write_clock(times + 2 * i + 1, stream);
    }
    const auto done = device_.create_event();
    MUONRT_CUDA(cudaEventRecord(handle_of(*done), stream));
    device_.synchronize(*done, Deadline::in_ms(kMaxWaitMs));
    if (const auto error = device_.error()) throw Error(*error);
    double sum = 0;
    for (int64_t i = 0; i < way.repeats; ++i)
      sum += static_cast<double>(times[2 * i + 1] - times[2 * i]) * 1e-6;
    return sum / static_cast<double>(way.repeats);
  }

  /// Measures all proposals in turn on the operands of `p`. Skips proposals that fail. Errors:
  /// NOT_SUPPORTED, with the last reason, if all fail; TIMEOUT.
  Way fastest(const MatmulDescriptors& words, const Product& p, cudaStream_t stream) {
    std::vector<Way> ways;
    for (const int64_t per_launch : {p.c.count, int64_t{1}}) {
      set_batches(words, p, per_launch);
      for (const auto& algorithm : library_.proposed(words, Depth::kInParts, kProposals))
        ways.push_back({algorithm, per_launch});
      if (p.c.count == 1) break;
    }
    std::string reason = "it proposes none";
    for (int round = -1; round < kRounds; ++round)
      for (Way& way : ways) try {
          if (round < 0) {
            ms_of(words, way, p, stream);  // a warm-up that loads the kernel
            const double ms = ms_of(words, way, p, stream);
            way.repeats =
                std::clamp<int64_t>(std::llround(kRegionMs / std::max(ms, 1e-3)), 1, kMaxRepeats);
          } else if (way.repeats > 0) {
            way.ms = std::min(way.ms, ms_of(words, way, p, stream));
          }
        } catch (const Error& error) {
          if (error.status() == Status::kTimeout) throw;  // the run still occupies the GPU
          reason = error.message();
          way.repeats = 0;
          way.ms = INFINITY;
        }
    const auto best = std::min_element(ways.begin(), ways.end(),
                                       [](const Way& a, const Way& b) { return a.ms < b.ms; });
    MUONRT_REQUIRE(best != ways.end() && std::isfinite(best->ms), Status::kNotSupported,
                   "cublasLt: no algorithm computes ", p.c.count, " products ", p.c.rows, " x ",
                   p.c.cols, " of depth ", p.a.cols, " (", reason, "); leave its fastest out");
    return *best;
  }

  Device& device_;
  const CublasLibrary library_;
  const Buffer clock_, flush_;
  std::map<BatchShape, std::pair<MatmulDescriptors, Way>> known_;
};

}  // namespace

std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device& device, int index) {
  return std::make_unique<FastestProducts>(device, index);
}

}  // namespace muonrt::tool
