#pragma once

#include <bit>
#include <cassert>

#include "cuda/kernels/elements.hpp"

// Functions for elements that keep their dtype. They move and check the bits of elements without
// conversion.

namespace muonrt::cuda {

/// @param index  index of the first element; N == kWidth requires `aligned`.
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

/// Does not check elements.
struct AnyBits {
  template <int N>
  __device__ void check(const Raw<N>&) {}
  __device__ bool bad() const { return false; }
};

/// Checks two-byte elements for non-finite values. If the elements keep their dtype, replaces a NaN
/// with the NaN that rounding produces (base/dtype.hpp).
class HalfBits {
 public:
  __device__ HalfBits(DType from, DType to)
      : fraction_(from == DType::kF16 ? 0x03ff03ffu : 0x007f007fu), keeps_nan_(from != to) {}

  /// @param words  each word contains two values; the last word may contain only one, in its lower
  ///     half.
  template <int N>
  __device__ void check(uint32_t (&words)[N]) {
    uint32_t any = 0, found = 0;
    for (const uint32_t word : words) any |= word;
    if ((any & kFromTwoOn) == 0) return;  // the usual case
    for (const uint32_t word : words) found |= magnitudes(word) + (fraction_ + 0x00010001);
    if ((found & kSigns) == 0) return;
    bad_ = true;
    if (keeps_nan_) return;
    for (uint32_t& word : words) word = with_one_nan(word);
  }
  __device__ void check(Raw<1>& raw) {
    uint32_t words[1] = {raw.bits};
    check(words);
    raw.bits = words[0];
  }
  __device__ void check(Raw<kWidth>& raw) { check(raw.low.word); }
  __device__ bool bad() const { return bad_; }

 private:
  static constexpr uint32_t kSigns = 0x80008000;
  static constexpr uint32_t kFromTwoOn = 0x40004000;  // the highest exponent bit of both values

  /// Returns the two magnitudes of a word. An addition to one magnitude cannot carry into the
  /// other. If 1 + the largest fraction is added to a magnitude, the highest bit of the sum is set
  /// for infinity and NaN. If the largest fraction is added, the highest bit is set only for NaN.
  __device__ static uint32_t magnitudes(uint32_t word) { return word & ~kSigns; }
  __device__ uint32_t with_one_nan(uint32_t word) const {
    const uint32_t nan = (magnitudes(word) + fraction_) & kSigns, rest = nan - (nan >> 15);
    return (word & ~(nan | rest)) | rest;
  }

  uint32_t fraction_;
  bool keeps_nan_, bad_ = false;
};

/// Checks f32 elements for non-finite values.
class WordBits {
 public:
  __device__ void check(uint32_t bits) { largest_.take(std::bit_cast<float>(bits)); }
  __device__ void check(const Raw<1>& raw) { check(raw.bits); }
  __device__ void check(const Raw<kWidth>& raw) {
    check(raw.low);
    check(raw.high);
  }
  __device__ void check(const Vec16& chunk) {
    for (const uint32_t word : chunk.word) check(word);
  }
  /// Returns whether a value is non-finite after it has been stored as `dtype`.
  __device__ bool bad(DType dtype = DType::kF32) const { return largest_.not_finite_as(dtype); }

 private:
  Largest largest_;
};

}  // namespace muonrt::cuda
