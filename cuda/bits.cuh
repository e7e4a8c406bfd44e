#pragma once

#include <bit>
#include <cassert>

#include "cuda/elements.hpp"

// Elements that keep their dtype: moved and looked at as the bits they are.

namespace muonrt::cuda {

/// 16 bytes of neighbours, and their words.
using Chunk = decltype(Raw<kWidth>::low);
struct Words {
  uint32_t of[4];
};
__device__ inline Words words_of(const Chunk& chunk) { return std::bit_cast<Words>(chunk); }

/// @param index  of the first; N == kWidth asks for `aligned`.
template <int N>
__device__ inline void store_raw(void* data, DType dtype, int64_t index, const Raw<N>& raw) {
  if constexpr (N == 1) {
    if (dtype == DType::kF32) {
      static_cast<uint32_t*>(data)[index] = raw.bits;
    } else {
      static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(raw.bits);
    }
  } else {
    assert(aligned(data, dtype, index));
    auto* at = reinterpret_cast<Chunk*>(static_cast<char*>(data) + index * size_of(dtype));
    at[0] = raw.low;
    if (dtype == DType::kF32) at[1] = raw.high;
  }
}

/// Nothing is looked for.
struct AnyBits {
  template <int N>
  __device__ void look(const Raw<N>&) {}
  __device__ bool bad() const { return false; }
};

/// Looks for values that are not finite among those of two bytes. Where they keep their dtype,
/// makes NaN quiet, as a cast to f32 and back does.
class HalfBits {
 public:
  __device__ HalfBits(DType from, DType to)
      : fraction_(from == DType::kF16 ? 0x03ff03ffu : 0x007f007fu),
        quiet_(to == DType::kF32     ? 0
               : from == DType::kF16 ? 0x02000200u
                                     : 0x00400040u) {}

  /// Words of two values, or of one in the lower half.
  template <int N>
  __device__ void look(uint32_t (&words)[N]) {
    uint32_t any = 0, found = 0;
    for (const uint32_t word : words) any |= word;
    if ((any & kFromTwoOn) == 0) return;  // nearly always
    for (const uint32_t word : words) found |= magnitudes(word) + (fraction_ + 0x00010001);
    if ((found & kSigns) == 0) return;
    bad_ = true;
    for (uint32_t& word : words) word |= quiet_bits(word);
  }
  __device__ void look(Raw<1>& raw) {
    uint32_t words[1] = {raw.bits};
    look(words);
    raw.bits = words[0];
  }
  __device__ void look(Raw<kWidth>& raw) {
    Words words = words_of(raw.low);
    look(words.of);
    raw.low = std::bit_cast<Chunk>(words);
  }
  __device__ bool bad() const { return bad_; }

 private:
  static constexpr uint32_t kSigns = 0x80008000;
  static constexpr uint32_t kFromTwoOn = 0x40004000;  // highest bit of exponents

  /// Nothing that is added to one of them reaches the other. A sum's own highest bit is set from
  /// infinity on with 1 + the largest fraction, from NaN on with the largest fraction.
  __device__ static uint32_t magnitudes(uint32_t word) { return word & ~kSigns; }
  __device__ uint32_t quiet_bits(uint32_t word) const {
    const uint32_t nan = (magnitudes(word) + fraction_) & kSigns;
    return (nan - (nan >> 15)) & quiet_;
  }

  uint32_t fraction_, quiet_;
  bool bad_ = false;
};

/// Looks for f32 that are not finite.
class WordBits {
 public:
  __device__ void look(uint32_t bits) {
    // Without signs values are in the order of their bits, NaN behind infinity.
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > largest_) largest_ = magnitude;
  }
  __device__ void look(const Raw<1>& raw) { look(raw.bits); }
  __device__ void look(const Raw<kWidth>& raw) {
    look(raw.low);
    look(raw.high);
  }
  __device__ void look(const Chunk& chunk) {
    for (const uint32_t word : words_of(chunk).of) look(word);
  }
  /// Once they are stored as `dtype`.
  __device__ bool bad(DType dtype = DType::kF32) const {
    return not_finite_as(std::bit_cast<float>(largest_), dtype);
  }

 private:
  uint32_t largest_ = 0;
};

}  // namespace muonrt::cuda
