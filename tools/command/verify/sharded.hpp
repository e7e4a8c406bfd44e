#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/info/tensor_layout.hpp"
#include "command/plan/rank_memory.hpp"
#include "command/run_device.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The dtypes (MUONRT_DTYPE_...) that values are rounded to.
struct Numerics {
  const char* name;
  int32_t data, grad, transport, iteration;
};

struct RunSettings {
  Numerics numerics;
  int32_t window = 3, commit = MUONRT_COMMIT_ATOMIC, threads = 1;
  int32_t replica_mode = MUONRT_REPLICA_MODE_ONCE;
  int64_t chunk_bytes = 0;
  bool poison = false, trace = false;
  bool aligned = false;  // whether shards are aligned to 256 bytes, as in trainers
  RunDevice where;
};

/// Returns the value of an element of the tensor with this seed. If `step` >= 0, returns the
/// element's gradient in this step instead. Values are in [-1, 1) and exact in f32. Every rank can
/// compute every value.
float element_value(uint64_t seed, int64_t element, int64_t step);

/// The bytes of a whole tensor and of its state. Only AdamW has a `variance`, and only bf16 tensors
/// have a `master`.
struct WholeTensor {
  std::vector<unsigned char> data;
  std::vector<float> momentum, variance, master;
};

/// One rank's shards of some tensors, their gradients, and the optimizer that updates them. Red
/// zones of NaN surround each shard. If a GPU is used, shards and gradients are in its memory, and
/// this object reads copies.
class Sharded {
 public:
  /// Collective.
  /// @param comm     the communicator that `on_device` creates.
  /// @param layouts  one layout for each tensor; if empty, every rank holds all elements.
  Sharded(Comm& comm, const std::vector<ModelTensor>& tensors,
          const std::vector<TensorLayout>& layouts, const RunSettings& settings);

  /// Fills the gradients of `step` and runs the step. Collective. Throws if the step is skipped.
  muonrt_step_report_t step(int64_t step, double lr);
  void fill_gradients(int64_t step);
  muonrt_step_report_t step_only(double lr);
  /// If a GPU is used, copies the parameters from it. `step` also does this.
  void fetch();

  Optimizer& optimizer() { return *optimizer_; }
  /// Returns the value of element `local` of the shard.
  float data_at(size_t tensor, int64_t local) const;
  /// Returns the state of the elements of the shard. The result is empty if the tensor has no state
  /// of this kind, or if owners store the state because gradients are partial.
  /// @param kind  MUONRT_STATE_MOMENTUM, _VARIANCE or _MASTER.
  std::vector<float> state(size_t tensor, int32_t kind);

  /// Calls visit(element, local) for every element of a tensor that this rank holds.
  template <class Visit>
  void visit(size_t tensor, Visit visit) const {
    for (const Stretch& s : shards_[tensor].stretches) {
      for (int64_t i = 0; i < s.count; ++i) visit(s.element + i, s.local + i);
    }
  }

  /// Returns the whole tensor. Only a rank that holds all elements may call this function.
  WholeTensor whole(size_t tensor);
  /// Returns the number of elements whose bytes or state differ from `expected`, plus the number of
  /// changed bytes in red zones.
  int64_t wrong_bits(size_t tensor, const WholeTensor& expected);
  /// Flips the highest exponent bit of the first element. If the rank holds no elements, returns
  /// false.
  bool plant();

 private:
  struct Shard {
    uint64_t seed = 0;
    bool muon = false, partial = false;  // if `partial`, the gradient is a sum of partial gradients
    int64_t elements = 0;
    // the number of partial gradients, and the index of this rank's partial gradient
    int64_t partial_grads = 1, partial_grad = 0;
    std::vector<Stretch> stretches;
    std::vector<unsigned char> data, grad;  // with the red zones
    // number of bytes before the first element
    int64_t data_at = 0, grad_at = 0;
    unsigned char *far_data = nullptr, *far_grad = nullptr;  // in GPU memory
  };
  void make_shard(size_t index, const ModelTensor& tensor, const TensorLayout* layout);
  void make_optimizer(Comm& comm, const std::vector<ModelTensor>& tensors,
                      const std::vector<TensorLayout>& layouts);

  RunSettings settings_;
  int rank_;
  RankMemory memory_;
  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace muonrt::tool
