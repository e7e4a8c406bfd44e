#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "pipeline/tensor_view.hpp"

namespace muonrt {

/// Orthogonalizes and multiplies matrices outside a step, with the same ops as a step and bitwise
/// identical results. Large batches are divided into parts that launch_limits() allows. A call
/// allocates nothing if an earlier call had the same shapes, strides and dtypes. On CUDA, calls
/// enqueue their work and return. All calls share one workspace, so the caller must make sure that
/// their work runs in order. Threads: one at a time.
class Orthogonalizer {
 public:
  /// @param device  Device whose Ops are used; it is destroyed last.
  Orthogonalizer(std::unique_ptr<Device> device, NewtonSchulz settings, FormChoice form);
  ~Orthogonalizer();

  /// Writes the orthogonalized matrices of x to `out`, rounded once to the dtype of `out`. If the
  /// host can access device memory and x has a non-finite element, `out` does not change. If the
  /// host cannot access device memory, matrices with a non-finite element become NaN.
  /// @param nonfinite  Null, or memory that the device can access. It receives 1 if x has
  ///     non-finite elements.
  /// @return  The index of a non-finite element of x if the host can access device memory and there
  ///     is one; otherwise nullopt.
  /// Errors: NOT_SUPPORTED if the first call is on a stream that is being captured.
  std::optional<std::vector<int64_t>> orthogonalize(const TensorView& out, const TensorView& x,
                                                    int64_t* nonfinite, void* callers_stream);
  /// Computes c = alpha a a^T + beta d. The dtypes of a, c and d must be equal. Only the upper
  /// triangle of d is read.
  /// @param d  Null if the term beta d is omitted.
  void symmetric_product(const TensorView& c, float alpha, const TensorView& a, float beta,
                         const TensorView* d, void* callers_stream);

  Device& device() { return *device_; }

 private:
  struct Work;

  Work& find(const char* what, std::vector<int64_t> key, bool captured,
             const std::function<std::unique_ptr<Work>()>& build);
  void* workspace(int64_t bytes);
  void finish(bool captured);

  std::unique_ptr<Device> device_;
  NewtonSchulz settings_;
  FormChoice form_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;  // recorded after the last call outside a capture
  Buffer findings_;
  // The last workspace is the largest. Lists and graphs may still refer to the earlier ones.
  std::vector<Buffer> workspaces_;
  std::map<std::vector<int64_t>, std::unique_ptr<Work>> works_;
};

}  // namespace muonrt
