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

/// The bytes of a whole tensor, and its state. `variance` of AdamW tensors, `master` of bf16 ones.
struct WholeTensor {
  std::vector<unsigned char> data;
  std::vector<float> momentum, variance, master;
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
  muonrt_step_report_t step(int64_t step, double lr);
  void fill_gradients(int64_t step);
  muonrt_step_report_t step_only(double lr);
  /// Copies the parameters from a GPU, if they are there; `step` does so.
  void fetch();

  Optimizer& optimizer() { return *optimizer_; }
  /// Element `local` of the shard.
  float data_at(size_t tensor, int64_t local) const;
  /// MUONRT_STATE_... of the shard's elements; empty if the tensor has no such state, or owners
  /// keep it (partial gradients).
  std::vector<float> state(size_t tensor, int32_t kind);

  /// Calls visit(element, local) for everything this rank holds of a tensor.
  template <class Visit>
  void visit(size_t tensor, Visit visit) const {
    for (const Stretch& s : shards_[tensor].stretches) {
      for (int64_t i = 0; i < s.count; ++i) visit(s.element + i, s.local + i);
    }
  }

  /// All of a tensor, for a rank that holds everything.
  WholeTensor whole(size_t tensor);
  /// Elements whose bytes, state included, are not those of `expected`; and changed red zones.
  int64_t wrong_bits(size_t tensor, const WholeTensor& expected);
  /// Flips the highest bit of the exponent of the first element, if the rank holds one.
  bool plant();

 private:
  struct Shard {
    uint64_t seed = 0;
    bool muon = false;
    int64_t elements = 0;
    int64_t partial_grads = 1,
            partial_grad = 0;  // of the gradient: how many, and which one lies here
    std::vector<Stretch> stretches;
    std::vector<unsigned char> data, grad;                   // red zones included
    int64_t data_at = 0, grad_at = 0;                        // bytes before the first element
    unsigned char *far_data = nullptr, *far_grad = nullptr;  // of the GPU
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
