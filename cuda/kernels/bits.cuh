#pragma once

#include <bit>
#include <cassert>

#include "cuda/kernels/elements.hpp"

// Elements that keep their dtype: moved and looked at as the bits they are.

namespace muonrt::cuda {

/// @param index  of the first; N == kWidth asks for `aligned`.
template <int N>
__device__ inline void store_raw(void* data, DType dtype, int64_t index, const Raw<N>& raw,
                                 Lanes lanes = Lanes::kApart) {
  if constexpr (N == 1) {
    if (dtype == DType::kF32) {
      static_cast<uint32_t*>(data)[index] = raw.bits;
    } else {
      static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(raw.bits);
    }
  } else {
    assert(aligned(data, dtype, index));
    char* const at = static_cast<char*>(data) + index * size_of(dtype);
    if (dtype == DType::kF32) return store_chunks(at, raw.low, raw.high, lanes);
    store_vec16(at, raw.low);
  }
}

/// Nothing is looked for.
struct AnyBits {
  template <int N>
  __device__ void look(const Raw<N>&) {}
  __device__ bool bad() const { return false; }
};

/// Looks for values that are not finite among those of two bytes. Where they keep their dtype, NaN
/// becomes what rounding makes of it (base/dtype.hpp).
class HalfBits {
 public:
  __device__ HalfBits(DType from, DType to)
      : fraction_(from == DType::kF16 ? 0x03ff03ffu : 0x007f007fu), keeps_nan_(from != to) {}

  /// Words of two values, or of one in the lower half.
  template <int N>
  __device__ void look(uint32_t (&words)[N]) {
    uint32_t any = 0, found = 0;
    for (const uint32_t word : words) any |= word;
    if ((any & kFromTwoOn) == 0) return;  // nearly always
    for (const uint32_t word : words) found |= magnitudes(word) + (fraction_ + 0x00010001);
    if ((found & kSigns) == 0) return;
    bad_ = true;
    if (keeps_nan_) return;
    for (uint32_t& word : words) word = with_one_nan(word);
  }
  __device__ void look(Raw<1>& raw) {
    uint32_t words[1] = {raw.bits};
    look(words);
    raw.bits = words[0];
  }
  __device__ void look(Raw<kWidth>& raw) { look(raw.low.word); }
  __device__ bool bad() const { return bad_; }

 private:
  static constexpr uint32_t kSigns = 0x80008000;
  static constexpr uint32_t kFromTwoOn = 0x40004000;  // highest bit of exponents

  /// Nothing that is added to one of them reaches the other. A sum's own highest bit is set from
  /// infinity on with 1 + the largest fraction, from NaN on with the largest fraction.
  __device__ static uint32_t magnitudes(uint32_t word) { return word & ~kSigns; }
  __device__ uint32_t with_one_nan(uint32_t word) const {
    const uint32_t nan = (magnitudes(word) + fraction_) & kSigns, rest = nan - (nan >> 15);
    return (word & ~(nan | rest)) | rest;
  }

  uint32_t fraction_;
  bool keeps_nan_, bad_ = false;
};

/// Looks for f32 that are not finite.
class WordBits {
 public:
  __device__ void look(uint32_t bits) { largest_.take(std::bit_cast<float>(bits)); }
  __device__ void look(const Raw<1>& raw) { look(raw.bits); }
  __device__ void look(const Raw<kWidth>& raw) {
    look(raw.low);
    look(raw.high);
  }
  __device__ void look(const Vec16& chunk) {
    for (const uint32_t word : chunk.word) look(word);
  }
  /// Once they are stored as `dtype`.
  __device__ bool bad(DType dtype = DType::kF32) const { return largest_.not_finite_as(dtype); }

 private:
  Largest largest_;
};

}  // namespace muonrt::cuda
