#include "cuda/device/cuda_graph.hpp"

#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/device/launch.hpp"

namespace muonrt::cuda {

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(stream, &status);
  if (result == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return true;
  }
  check(result, "cudaStreamIsCapturing", __func__, __LINE__);
  return status != cudaStreamCaptureStatusNone;
}

void refuse_captured(cudaStream_t stream, const char* what, const char* which, const char* why) {
  MUONRT_REQUIRE(!is_captured(stream), Status::kNotSupported, what, ": ", which,
                 " is being captured into a graph (", why, "); end the capture first");
}

void begin_capture(cudaStream_t stream) {
  MUONRT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

void drop_capture(cudaStream_t stream) noexcept {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}

CudaGraph::CudaGraph(int device, cudaStream_t stream) : device_(device) {
  cudaGraph_t graph = nullptr;
  MUONRT_CUDA(cudaStreamEndCapture(stream, &graph));
  const RelaxedCapture relaxed;
  cudaError_t made = cudaGraphGetNodes(graph, nullptr, &nodes_);
  if (made == cudaSuccess) made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate", __func__, __LINE__);
}

CudaGraph::~CudaGraph() {
  try {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    cudaGraphExecDestroy(graph_);
  } catch (const Error&) {  // a lost context has no graphs
  }
}

void CudaGraph::launch(cudaStream_t stream) const {
  launches_of_thread += static_cast<int64_t>(nodes_);
  MUONRT_CUDA(cudaGraphLaunch(graph_, stream));
}

}  // namespace muonrt::cuda
