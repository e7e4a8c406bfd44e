#include "cuda/products/cublas_library.hpp"

#include <map>
#include <mutex>

#include "base/error.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/products/cublas_api.hpp"

namespace muonrt::cuda {

namespace {

/// Handles are reused and never destroyed, because destroying a handle would wait for all work on
/// the GPU, including work of the caller and of other optimizers.
struct Idle {
  std::mutex mutex;
  std::map<int, std::vector<cublasLtHandle_t>> of;  // the key is the device
};
Idle& idle() {
  static Idle* const all = new Idle();
  return *all;
}

const void* at(const MatrixBatch& m, int64_t index) {
  return static_cast<const char*>(m.data) + index * m.stride * size_of(m.dtype);
}

}  // namespace

CublasLibrary::CublasLibrary(Device& device, int index)
    : index_(index), scratch_(device, kCublasWorkspace) {
  const std::lock_guard lock(idle().mutex);
  auto& mine = idle().of[index];
  if (mine.empty()) {
    const RelaxedCapture relaxed;
    MUONRT_CUBLAS(cublas_api().create(&handle_));
    mine.reserve(mine.capacity() + 1);  // reserves memory, so that returning the handle cannot fail
  } else {
    handle_ = mine.back();
    mine.pop_back();
  }
}

CublasLibrary::~CublasLibrary() {
  const std::lock_guard lock(idle().mutex);
  idle().of[index_].push_back(handle_);
}

std::vector<cublasLtMatmulAlgo_t> CublasLibrary::proposed(const MatmulDescriptors& w, Depth depth,
                                                          int most) const {
  const CublasPreference preference = product_preference(depth);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublas_api().heuristic(handle_, w.desc.get(), w.b.get(), w.a.get(), w.d.get(), w.c.get(),
                             preference.get(), most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  MUONRT_CUBLAS(status);
  std::vector<cublasLtMatmulAlgo_t> out;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) out.push_back(found[i].algo);
  return out;
}

bool CublasLibrary::takes(const MatmulDescriptors& w, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t found = {};
  const cublasStatus_t status = cublas_api().algo_check(handle_, w.desc.get(), w.b.get(), w.a.get(),
                                                        w.d.get(), w.c.get(), &algorithm, &found);
  return status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= size_t{kCublasWorkspace};
}

bool CublasLibrary::has_batches(const cublasLtMatmulAlgo_t& algorithm) const {
  int32_t supports = 0;
  size_t written = 0;
  MUONRT_CUBLAS(cublas_api().cap_get(&algorithm, CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT, &supports,
                                     sizeof supports, &written));
  return supports != 0;
}

void CublasLibrary::launch(const MatmulDescriptors& w, const cublasLtMatmulAlgo_t& algorithm,
                           const Product& p, int64_t first, cudaStream_t stream) const {
  const MatrixBatch& d = addend_of(p);
  for (const MatrixBatch* m : {&p.a, &p.b, &p.c, &d})
    MUONRT_CHECK_INTERNAL(reinterpret_cast<uintptr_t>(m->data) % kCublasAlignment == 0 &&
                              m->stride * size_of(m->dtype) % kCublasAlignment == 0,
                          "operands at multiples of ", kCublasAlignment, " bytes");
  const float beta = p.d.data != nullptr ? p.beta : 0.0f;
  ++launches_of_thread;
  MUONRT_CUBLAS(cublas_api().matmul(
      handle_, w.desc.get(), &p.alpha, at(p.b, first), w.b.get(), at(p.a, first), w.a.get(), &beta,
      at(d, first), w.d.get(), const_cast<void*>(at(p.c, first)), w.c.get(), &algorithm,
      scratch_.data(), static_cast<size_t>(kCublasWorkspace), stream));
}

}  // namespace muonrt::cuda
