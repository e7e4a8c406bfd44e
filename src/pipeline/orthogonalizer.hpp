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

/// Orthogonalizes and multiplies matrices outside of a step, with the ops and the bits of a step. A
/// call with shapes, strides and dtypes that the object has had before allocates nothing. Batches
/// run in parts that `launch_limits` permits.
/// Threads: one at a time. On CUDA calls enqueue their work and return; they share one workspace,
/// so the caller keeps their order.
class Orthogonalizer {
 public:
  /// @param device  with its Ops; destroyed last.
  Orthogonalizer(std::unique_ptr<Device> device, NewtonSchulz settings, FormChoice form);
  ~Orthogonalizer();

  /// out <- the orthogonalized matrices of x, rounded once to the dtype of `out`.
  /// @param nonfinite  null, or memory that the device reaches: receives 1 if x is not finite.
  /// Returns the index of an element of x that is not finite; `out` is then unchanged. This is
  /// checked only if the host reaches device memory, otherwise such matrices become NaN.
  /// Errors: NOT_SUPPORTED for a first call on a stream that is being captured.
  std::optional<std::vector<int64_t>> orthogonalize(const TensorView& out, const TensorView& x,
                                                    int64_t* nonfinite, void* callers_stream);
  /// c <- alpha a a^T + beta d in the dtype of a, which c and d have, too. Of d only the upper
  /// triangle is read. @param d  null: without this term.
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
  std::unique_ptr<Event> done_;  // after the last call outside a capture
  Buffer findings_;
  // The last one is the largest. Lists and graphs refer to the others.
  std::vector<Buffer> workspaces_;
  std::map<std::vector<int64_t>, std::unique_ptr<Work>> works_;
};

}  // namespace muonrt
