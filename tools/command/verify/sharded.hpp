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

/// MUONRT_DTYPE_... of everything that is rounded.
struct Numerics {
  const char* name;
  int32_t data, grad, transport, iteration;
};

struct RunSettings {
  Numerics numerics;
  int32_t window = 3, commit = MUONRT_COMMIT_ATOMIC, threads = 1;
  int64_t chunk_bytes = 0;
  bool poison = false;
  bool aligned = false;  // shards as trainers have them, at 256 bytes; else at elements alone
  RunDevice where;
};

/// Value of an element of the tensor with this seed (`step` < 0) or of its gradient in a step: in
/// [-1, 1), exact in f32. Every rank knows every value.
float element_value(uint64_t seed, int64_t element, int64_t step);

/// A whole tensor and its state, as bytes. `variance` of AdamW tensors, `master` of bf16 ones.
struct WholeTensor {
  std::vector<unsigned char> data, momentum, variance, master;
};

/// One rank's shards of some tensors between red zones of NaN, their gradients, and the optimizer
/// over them. On a GPU all of it lies in its memory, and what is read here are copies.
class Sharded {
 public:
  /// Collective. @param comm  as `on_device` gives it.
  /// @param layouts  one for each tensor; none: every rank holds everything.
  Sharded(Comm& comm, const std::vector<ModelTensor>& tensors,
          const std::vector<TensorLayout>& layouts, const RunSettings& settings);

  /// Collective: the gradients of `step`, then the step. Throws where it is skipped.
  muonrt_report_t step(int64_t step, double lr);
  void fill_gradients(int64_t step);
  muonrt_report_t step_only(double lr);
  /// Brings the copies up to date, if they are any; `step` does so.
  void fetch();

  Optimizer& optimizer() { return *optimizer_; }
  size_t tensors() const { return shards_.size(); }
  int64_t elements(size_t tensor) const { return shards_[tensor].elements; }
  /// Element `local` of the shard, or of its f32 state (NaN where there is no such state).
  float data_at(size_t tensor, int64_t local) const;
  float state_at(size_t tensor, int32_t kind, int64_t local) const;
  /// Whether momentum and moments lie here, and not with owners (partial gradients).
  bool keeps_state(size_t tensor) const { return shards_[tensor].keeps_state; }

  /// Calls visit(element, local) for everything this rank holds of a tensor.
  template <class Visit>
  void visit(size_t tensor, Visit visit) const {
    for (const Stretch& s : shards_[tensor].stretches) {
      for (int64_t i = 0; i < s.count; ++i) visit(s.element + i, s.local + i);
    }
  }

  /// All of a tensor, for a rank that holds everything.
  WholeTensor whole(size_t tensor) const;
  /// Elements whose bytes, state included, are not those of `expected`; and changed red zones.
  int64_t wrong_bits(size_t tensor, const WholeTensor& expected) const;
  /// Flips the highest bit of the exponent of the first element, if the rank holds one.
  bool plant();

 private:
  struct State {
    const float* at = nullptr;  // null: there is none here
    const void* far = nullptr;  // of the GPU; `copy` then holds what `at` points to
    std::vector<unsigned char> copy;
  };
  struct Shard {
    uint64_t seed = 0;
    int64_t elements = 0;
    int64_t addends = 1, addend = 0;  // of the gradient: how many, and which one lies here
    bool keeps_state = true;
    std::vector<Stretch> stretches;
    std::vector<unsigned char> data, grad;                   // red zones included
    int64_t data_at = 0, grad_at = 0;                        // bytes before the first element
    unsigned char *far_data = nullptr, *far_grad = nullptr;  // of the GPU
    State momentum, variance, master;
  };
  void make_shard(size_t index, const ModelTensor& tensor, const TensorLayout* layout);
  void make_optimizer(Comm& comm, const std::vector<ModelTensor>& tensors,
                      const std::vector<TensorLayout>& layouts);
  State take_state(size_t tensor, int32_t kind);
  const float* state(size_t tensor, int32_t kind) const;

  RunSettings settings_;
  int rank_;
  RankMemory memory_;
  std::vector<Shard> shards_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace muonrt::tool
