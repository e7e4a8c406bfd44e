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

/// The dtypes (MUONRT_DTYPE_...) of everything that is rounded.
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
  bool aligned = false;  // align shards to 256 bytes, as trainers do, and not to elements only
  RunDevice where;
};

/// The value of an element of the tensor with this seed, or of its gradient in `step` if that is
/// >= 0. Values are in [-1, 1) and exact in f32. Every rank can compute every value.
float element_value(uint64_t seed, int64_t element, int64_t step);

/// The bytes of a whole tensor and its state: `variance` for AdamW, `master` for bf16 tensors.
struct WholeTensor {
  std::vector<unsigned char> data;
  std::vector<float> momentum, variance, master;
};

/// One rank's shards of some tensors between red zones of NaN, their gradients, and the optimizer
/// over them. With a GPU all of them are in its memory, and this object reads copies.
class Sharded {
 public:
  /// Collective.
  /// @param comm     the communicator that `on_device` creates.
  /// @param layouts  one for each tensor; empty: every rank holds everything.
  Sharded(Comm& comm, const std::vector<ModelTensor>& tensors,
          const std::vector<TensorLayout>& layouts, const RunSettings& settings);

  /// Fills the gradients of `step` and runs the step. Collective. Throws if it is skipped.
  muonrt_step_report_t step(int64_t step, double lr);
  void fill_gradients(int64_t step);
  muonrt_step_report_t step_only(double lr);
  /// Copies the parameters from the GPU, if one is used; `step` does it, too.
  void fetch();

  Optimizer& optimizer() { return *optimizer_; }
  /// The value of element `local` of the shard.
  float data_at(size_t tensor, int64_t local) const;
  /// The state of the elements of the shard; empty if the tensor has no such state, or if its
  /// owners store it because gradients are partial.
  /// @param kind  MUONRT_STATE_MOMENTUM, _VARIANCE or _MASTER.
  std::vector<float> state(size_t tensor, int32_t kind);

  /// Calls visit(element, local) for every element of a tensor that this rank holds.
  template <class Visit>
  void visit(size_t tensor, Visit visit) const {
    for (const Stretch& s : shards_[tensor].stretches) {
      for (int64_t i = 0; i < s.count; ++i) visit(s.element + i, s.local + i);
    }
  }

  /// The whole tensor; only for a rank that holds everything.
  WholeTensor whole(size_t tensor);
  /// Counts elements whose bytes or state differ from `expected`, and changed bytes of red zones.
  int64_t wrong_bits(size_t tensor, const WholeTensor& expected);
  /// Flips the highest exponent bit of the first element. Returns false if the rank holds none.
  bool plant();

 private:
  struct Shard {
    uint64_t seed = 0;
    bool muon = false, partial = false;  // partial: the gradient is a sum of partial gradients
    int64_t elements = 0;
    int64_t partial_grads = 1, partial_grad = 0;  // their number, and this rank's index
    std::vector<Stretch> stretches;
    std::vector<unsigned char> data, grad;                   // including red zones
    int64_t data_at = 0, grad_at = 0;                        // bytes before the first element
    unsigned char *far_data = nullptr, *far_grad = nullptr;  // in the GPU's memory
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
