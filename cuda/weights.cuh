#pragma once

#include "backend/weight_bits.hpp"
#include "cuda/elements.hpp"

namespace muonrt::cuda {

struct Verdict {
  const Ballot* sum;
  int64_t world, stamp;
  __device__ bool consents() const { return passes(*sum, world, stamp); }
};

/// The weights of a parameter, as f32 wherever their f32 value is.
struct Weights {
  void* param;
  float* master;
  uint16_t* remainder;
  DType dtype;
  WeightForm form;
  int32_t index;  // of the parameter
  uint64_t seed, step;

  __device__ static Weights of(const ParamView& view, int32_t index) {
    return {view.param, view.master, view.remainder, view.param_dtype,
            view.form,  index,       view.seed,      view.step};
  }
  __device__ bool vectors_fit(int64_t at) const {
    return aligned(param, dtype, at) &&
           (form != WeightForm::kMaster || aligned(master, DType::kF32, at)) &&
           (form != WeightForm::kRemainder || aligned(remainder, DType::kBF16, at));
  }
  template <int N>
  __device__ Values<N> read(int64_t at) const {
    if (form == WeightForm::kMaster) return widen(load<N>(master, DType::kF32, at), DType::kF32);
    if (form != WeightForm::kRemainder) return widen(load<N>(param, dtype, at), dtype);
    const auto* high = static_cast<const uint16_t*>(param);
    Values<N> out;
    for (int i = 0; i < N; ++i) out.x[i] = join_weight(high[at + i], remainder[at + i]);
    return out;
  }
  /// @param place  of the neighbours in the whole tensor: place(i) for i < N.
  template <int N, class Place>
  __device__ void write(int64_t at, const Values<N>& w, const Place& place) const {
    if (form == WeightForm::kMaster) store(master, DType::kF32, at, w);
    if (form == WeightForm::kPlain || form == WeightForm::kMaster)
      return store(param, dtype, at, w);
    auto* high = static_cast<uint16_t*>(param);
    for (int i = 0; i < N; ++i) {
      if (form == WeightForm::kRemainder) {
        const SplitWeight split = split_updated(w.x[i]);
        high[at + i] = split.high;
        remainder[at + i] = split.low;
      } else {
        high[at + i] = round_stochastic(
            w.x[i], random_bits(seed, step, static_cast<uint32_t>(index), place(i)));
      }
    }
  }
};

/// Where elements of an item lie in the whole tensor, counted row by row inside the item.
struct Places {
  int64_t cols, tensor_index, tensor_ld;
  __device__ uint64_t at(int64_t element) const {
    return static_cast<uint64_t>(tensor_index + element / cols * tensor_ld + element % cols);
  }
  __device__ int64_t row(int64_t element) const {
    return tensor_index / tensor_ld + element / cols;
  }
};

}  // namespace muonrt::cuda
