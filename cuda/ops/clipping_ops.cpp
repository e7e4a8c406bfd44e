#include "cuda/device/cuda_device.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/ops/cuda_ops.hpp"

namespace muonrt::cuda {

void CudaOps::normuon(Stream& stream, const MatrixBatch& matrices,
                      std::span<const NormuonState> states, const StepTables& tables) {
  const DeviceGuard guard(device_.index());
  cuda::normuon(matrices, states, tables, handle_of(stream));
}

void CudaOps::commit_normuon(Stream& stream, std::span<const NormuonState> states,
                             const ParamView* params, const CommitCondition& condition) {
  const DeviceGuard guard(device_.index());
  cuda::commit_normuon(states, params, condition, handle_of(stream));
}

void CudaOps::sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                          int64_t* sums) {
  if (list.empty()) return;
  const DeviceGuard guard(device_.index());
  const cudaStream_t handle = handle_of(stream);
  cuda::sum_squares(params_.find(list.data(), handle, list).items, std::ssize(list), params, sums,
                    device_.resident_blocks(), handle);
}

void CudaOps::scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                              const GradientTables& tables, Findings* findings, double* norm) {
  const DeviceGuard guard(device_.index());
  cuda::scale_gradients(factors, clip, tables, findings, norm, handle_of(stream));
}

void CudaOps::take_logits(Stream& stream, const float* from, float* to, int64_t count) {
  const DeviceGuard guard(device_.index());
  cuda::take_logits(from, to, count, handle_of(stream));
}

void CudaOps::clip_heads(Stream& stream, const QkClip& clip, Findings* findings) {
  const DeviceGuard guard(device_.index());
  cuda::clip_heads(clip, findings, handle_of(stream));
}

}  // namespace muonrt::cuda
