#include "cuda/device/cuda_device.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/ops/cuda_ops.hpp"

namespace muonrt::cuda {

void CudaOps::tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) {
  MUONRT_CHECK_INTERNAL(!low || x.dtype == DType::kBF16, "lower halves of ", name_of(x.dtype));
  if (x.count == 0 || x.rows == 0 || x.cols == 0) return;
  const DeviceGuard guard(device_.index());
  cuda::tally(x, low, tallies, device_.resident_blocks(), handle_of(stream));
}

void CudaOps::lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) {
  MUONRT_CHECK_INTERNAL(x.rows <= x.cols, "Lanczos on ", x.rows, " x ", x.cols);
  if (x.count == 0 || x.rows == 0) return;
  const DeviceGuard guard(device_.index());
  cuda::lanczos(x, workspace, out, handle_of(stream));
}

void CudaOps::hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) {
  if (bytes == 0) return;
  const DeviceGuard guard(device_.index());
  cuda::hash_memory(memory, bytes, sum, device_.resident_blocks(), handle_of(stream));
}

}  // namespace muonrt::cuda
