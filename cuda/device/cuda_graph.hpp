#pragma once

#include <cuda_runtime_api.h>

#include "backend/graph_capture.hpp"

namespace muonrt::cuda {

/// A stream's work as a graph, ready to be launched.
class CudaGraph final : public DeviceGraph {
 public:
  /// Ends the capture of `stream`. Errors: DEVICE if something in it could not be captured.
  CudaGraph(int device, cudaStream_t stream);
  ~CudaGraph() override;
  void launch(cudaStream_t stream) const;

 private:
  int device_;
  cudaGraphExec_t graph_ = nullptr;
};

/// Whether work on a stream would be captured into a graph, or would spoil the capture of another.
bool is_captured(cudaStream_t stream);
/// Errors: NOT_SUPPORTED if it is; `what` it is for, such as "step", `which` "the stream", `why`
/// what stands in the way.
void refuse_captured(cudaStream_t stream, const char* what, const char* which, const char* why);

/// Begins one; other threads may go on with what a capture forbids.
void begin_capture(cudaStream_t stream);
/// Ends one and forgets it.
void drop_capture(cudaStream_t stream) noexcept;

}  // namespace muonrt::cuda
