#pragma once

#include "backend/weight_bits.hpp"
#include "cuda/kernels/elements.hpp"

namespace muonrt::cuda {

/// Where elements of an item lie in the whole tensor, counted row by row inside the item.
struct Places {
  int64_t cols, tensor_index, tensor_ld;

  /// One of them, from which to go on to the next.
  struct Place {
    int64_t row, col;
  };
  __device__ Place at(int64_t element) const {
    const int64_t row = element / cols;
    return {row, element - row * cols};
  }
  __device__ void next(Place& place) const { go_on(place, 1); }
  /// By `count` at most, and not beyond the next row's first. @return by how many.
  __device__ int go_on(Place& place, int count) const {
    const int64_t left = cols - place.col;
    if (count < left) {
      place.col += count;
      return count;
    }
    place = {place.row + 1, 0};
    return static_cast<int>(left);
  }
  __device__ uint64_t index(const Place& place) const {
    return static_cast<uint64_t>(tensor_index + place.row * tensor_ld + place.col);
  }
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
    const Halves<N> high = load_halves<N>(static_cast<const uint16_t*>(param), at);
    const Halves<N> low = load_halves<N>(remainder, at);
    Values<N> out;
    for (int i = 0; i < N; ++i) out.x[i] = join_weight(high.bits[i], low.bits[i]);
    return out;
  }
  /// @param element  of the item that the first is; not looked at unless rounding is stochastic.
  template <int N>
  __device__ void write(int64_t at, const Values<N>& w, const Places& places, int64_t element,
                        Lanes lanes) const {
    if (form == WeightForm::kMaster) store(master, DType::kF32, at, w, lanes);
    if (form == WeightForm::kPlain || form == WeightForm::kMaster)
      return store(param, dtype, at, w, lanes);
    if (form == WeightForm::kStochastic)
      return store_halves(static_cast<uint16_t*>(param), at, rounded(w, places, element));
    Halves<N> high, low;
    for (int i = 0; i < N; ++i) {
      const SplitWeight split = split_updated(w.x[i]);
      high.bits[i] = split.high;
      low.bits[i] = split.low;
    }
    store_halves(remainder, at, low);
    store_halves(static_cast<uint16_t*>(param), at, high);
  }

  /// At random: one run of the generator after the other, each for those neighbours that lie in its
  /// block of the tensor and in one row.
  template <int N>
  __device__ Halves<N> rounded(const Values<N>& w, const Places& places, int64_t element) const {
    Places::Place place = places.at(element);
    Halves<N> out;
#pragma unroll 1
    for (int done = 0; done < N;) {
      const uint64_t at = places.index(place);
      const RandomBlock random =
          random_block(seed, step, static_cast<uint32_t>(index), at / kRandomBlock);
      const int first = static_cast<int>(at % kRandomBlock);
      const int end = done + places.go_on(place, static_cast<int>(kRandomBlock) - first);
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (i >= done && i < end)
          out.bits[i] =
              round_stochastic(w.x[i], random.of(static_cast<uint32_t>(first + i - done)));
      done = end;
    }
    return out;
  }
};

}  // namespace muonrt::cuda
