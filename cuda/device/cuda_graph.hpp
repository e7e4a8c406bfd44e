#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "backend/graph_capture.hpp"

namespace muonrt::cuda {

/// The captured work of a stream, ready to be launched.
class CudaGraph final : public DeviceGraph {
 public:
  /// Ends the capture of `stream`. Errors: DEVICE if an operation could not be captured.
  CudaGraph(int device, cudaStream_t stream);
  ~CudaGraph() override;
  void launch(cudaStream_t stream) const;

 private:
  int device_;
  size_t nodes_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

/// Returns whether `stream` is being captured, or whether work on it would invalidate a capture of
/// another stream.
bool is_captured(cudaStream_t stream);
/// Rejects a captured stream. The message contains `what`, an operation such as "step"; `which`,
/// such as "the stream"; and `why`, the reason. Errors: NOT_SUPPORTED if is_captured(stream).
void refuse_captured(cudaStream_t stream, const char* what, const char* which, const char* why);

/// Starts a capture. Other threads may still make calls that a capture normally forbids.
void begin_capture(cudaStream_t stream);
/// Ends a capture and discards it.
void drop_capture(cudaStream_t stream) noexcept;

}  // namespace muonrt::cuda
