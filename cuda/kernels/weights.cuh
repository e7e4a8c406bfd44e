#pragma once

#include "backend/weight_bits.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/findings.cuh"

namespace muonrt::cuda {

/// Records a finding in `findings` if one of the values is non-finite in the stored dtype. The
/// comparisons are combined into one predicate, because a maximum would need more registers than
/// are available in commit_muon.
/// @param findings  may be null.
template <int N>
__device__ inline void note_written(const Values<N>& values, DType dtype, Findings* findings) {
  const auto end = std::bit_cast<float>(end_of_finite(dtype));
  bool finite = true;
  for (int i = 0; i < N; ++i) finite = finite & (fabsf(values.x[i]) < end);
  if (!finite) note_written(findings);
}

/// Positions of an item's elements in the whole tensor. Elements are numbered row by row inside the
/// item.
struct Positions {
  int64_t cols, tensor_index, tensor_ld;

  /// A position that can be advanced.
  struct Position {
    int64_t row, col;
  };
  __device__ Position at(int64_t element) const {
    const int64_t row = element / cols;
    return {row, element - row * cols};
  }
  __device__ void next(Position& position) const { advance(position, 1); }
  /// Advances by at most `count`, but not beyond the first element of the next row.
  /// @return  the number of elements by which it has advanced.
  __device__ int advance(Position& position, int count) const {
    const int64_t left = cols - position.col;
    if (count < left) {
      position.col += count;
      return count;
    }
    position = {position.row + 1, 0};
    return static_cast<int>(left);
  }
  __device__ uint64_t index(const Position& position) const {
    return static_cast<uint64_t>(tensor_index + position.row * tensor_ld + position.col);
  }
};

/// Reads and writes the weights of a parameter as f32, in each WeightForm.
struct Weights {
  void* param;
  float* master;
  uint16_t* remainder;
  DType dtype;
  WeightForm form;
  const ParamView* view;  // stochastic rounding reads its fields again, to save registers
  Findings* findings;     // findings about written values; may be null

  __device__ static Weights of(const ParamView& view, Findings* findings) {
    return {view.param, view.master, view.remainder, view.param_dtype, view.form, &view, findings};
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
  /// @param element  index of the first element in the item; used only for stochastic rounding.
  template <int N>
  __device__ void write(int64_t at, const Values<N>& w, const Positions& positions, int64_t element,
                        Lanes lanes) const {
    // Stochastic rounding never makes a finite value infinite.
    note_written(w, form == WeightForm::kStochastic ? DType::kF32 : dtype, findings);
    if (form == WeightForm::kMaster) store(master, DType::kF32, at, w, lanes);
    if (form == WeightForm::kParamOnly || form == WeightForm::kMaster)
      return store(param, dtype, at, w, lanes);
    if (form == WeightForm::kStochastic)
      return store_halves(static_cast<uint16_t*>(param), at, rounded<0>(w, positions, element));
    Halves<N> high, low;
    for (int i = 0; i < N; ++i) {
      const SplitWeight split = split_updated(w.x[i]);
      high.bits[i] = split.high;
      low.bits[i] = split.low;
    }
    store_halves(remainder, at, low);
    store_halves(static_cast<uint16_t*>(param), at, high);
  }

  /// The key is read each time, because keeping it would need a register that commit_muon does not
  /// have.
  __device__ uint32_t key() const { return *static_cast<const volatile uint32_t*>(&view->key); }

  /// Rounds stochastically. The generator is called once for all neighboring elements that share a
  /// block of kRandomBlock random numbers and are in the same row. Usually all elements share one
  /// block.
  /// @tparam kApart  is XORed with the seed: kMomentumSeed for momentum, 0 for weights.
  template <uint64_t kApart, int N>
  __device__ Halves<N> rounded(const Values<N>& w, const Positions& positions,
                               int64_t element) const {
    Positions::Position position = positions.at(element);
    Halves<N> out;
    const uint64_t begin = positions.index(position);
    if (N == kRandomBlock && begin % kRandomBlock == 0 && positions.cols - position.col >= N) {
      const RandomBlock random =
          random_block(view->seed ^ kApart, view->step, key(), begin / kRandomBlock);
#pragma unroll
      for (int i = 0; i < N; ++i)
        out.bits[i] = round_stochastic(w.x[i], random.of(static_cast<uint32_t>(i)));
      return out;
    }
#pragma unroll 1
    for (int done = 0; done < N;) {
      const uint64_t at = positions.index(position);
      const RandomBlock random =
          random_block(view->seed ^ kApart, view->step, key(), at / kRandomBlock);
      const int first = static_cast<int>(at % kRandomBlock);
      const int end = done + positions.advance(position, static_cast<int>(kRandomBlock) - first);
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
