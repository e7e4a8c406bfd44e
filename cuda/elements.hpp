#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "backend/update_rules.hpp"
#include "base/dtype.hpp"

// Neighbouring elements of an array whose dtype is known at run time: read as they lie, widened to
// f32, narrowed and written. Plain C++, so that the same text is tested on the host.

namespace muonrt::cuda {

/// Elements a thread moves at once where addresses allow: 16 bytes of bf16 or f16, twice 16 of f32.
constexpr int kWidth = 8;

/// Bytes, of elements of any dtype: one access of a thread.
struct [[gnu::may_alias]] alignas(16) Sixteen {
  uint32_t word[4];
};

/// N elements of a dtype as they lie in memory; one of two bytes takes the lower half.
template <int N>
struct Raw;
template <>
struct Raw<1> {
  uint32_t bits;
};
template <>
struct Raw<kWidth> {
  Sixteen low, high;
};

template <int N>
struct Values {
  float x[N];
};

/// Whether elements from `index` on begin on a multiple of 16 bytes.
MUONRT_HOST_DEVICE inline bool aligned(const void* data, DType dtype, int64_t index) {
  const auto address =
      reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(index * size_of(dtype));
  return address % sizeof(Sixteen) == 0;
}

/// Whether rows this many elements apart are a multiple of 16 bytes apart.
MUONRT_HOST_DEVICE inline bool aligned_stride(DType dtype, int64_t ld) {
  return ld * size_of(dtype) % static_cast<int64_t>(sizeof(Sixteen)) == 0;
}

/// @param index  of the first; N == kWidth asks for `aligned`.
template <int N>
MUONRT_HOST_DEVICE inline Raw<N> load(const void* data, DType dtype, int64_t index) {
  Raw<N> out;
  if constexpr (N == 1) {
    out.bits = dtype == DType::kF32 ? static_cast<const uint32_t*>(data)[index]
                                    : static_cast<const uint16_t*>(data)[index];
  } else {
    assert(aligned(data, dtype, index));
    const auto* at =
        reinterpret_cast<const Sixteen*>(static_cast<const char*>(data) + index * size_of(dtype));
    out.low = at[0];
    if (dtype == DType::kF32) out.high = at[1];
  }
  return out;
}

/// An element of two bytes.
MUONRT_HOST_DEVICE inline float widen_narrow(uint32_t bits, DType dtype) {
  return dtype == DType::kF16 ? to_f32(f16{static_cast<uint16_t>(bits)})
                              : std::bit_cast<float>(bits << 16);
}

MUONRT_HOST_DEVICE inline uint32_t narrow(float x, DType dtype) {
  return dtype == DType::kF16 ? to_f16(x).bits : to_bf16(x).bits;
}

template <int N>
MUONRT_HOST_DEVICE inline Values<N> widen(const Raw<N>& raw, DType dtype) {
  Values<N> out;
  if constexpr (N == 1) {
    out.x[0] =
        dtype == DType::kF32 ? std::bit_cast<float>(raw.bits) : widen_narrow(raw.bits, dtype);
  } else if (dtype == DType::kF32) {
    for (int i = 0; i < 4; ++i) {
      out.x[i] = std::bit_cast<float>(raw.low.word[i]);
      out.x[4 + i] = std::bit_cast<float>(raw.high.word[i]);
    }
  } else {
    for (int i = 0; i < kWidth; ++i)
      out.x[i] = widen_narrow(raw.low.word[i / 2] >> 16 * (i % 2) & 0xffffu, dtype);
  }
  return out;
}

/// The bits of N neighbours of two bytes.
template <int N>
struct Halves {
  uint16_t bits[N];
};

/// @param index  of the first; N == kWidth asks for `aligned`.
template <int N>
MUONRT_HOST_DEVICE inline Halves<N> load_halves(const uint16_t* data, int64_t index) {
  const Raw<N> raw = load<N>(data, DType::kBF16, index);
  Halves<N> out;
  if constexpr (N == 1) {
    out.bits[0] = static_cast<uint16_t>(raw.bits);
  } else {
    for (int i = 0; i < N; ++i)
      out.bits[i] = static_cast<uint16_t>(raw.low.word[i / 2] >> 16 * (i % 2));
  }
  return out;
}

template <int N>
MUONRT_HOST_DEVICE inline void store_halves(uint16_t* data, int64_t index, const Halves<N>& all) {
  if constexpr (N == 1) {
    data[index] = all.bits[0];
  } else {
    assert(aligned(data, DType::kBF16, index));
    Sixteen raw;
    for (int i = 0; i < N / 2; ++i)
      raw.word[i] = all.bits[2 * i] | uint32_t{all.bits[2 * i + 1]} << 16;
    *reinterpret_cast<Sixteen*>(data + index) = raw;
  }
}

/// Rounds to `dtype`, ties to even, and writes.
template <int N>
MUONRT_HOST_DEVICE inline void store(void* data, DType dtype, int64_t index,
                                     const Values<N>& values) {
  if (dtype != DType::kF32) {
    Halves<N> all;
    for (int i = 0; i < N; ++i) all.bits[i] = static_cast<uint16_t>(narrow(values.x[i], dtype));
    return store_halves(static_cast<uint16_t*>(data), index, all);
  }
  if constexpr (N == 1) {
    static_cast<float*>(data)[index] = values.x[0];
  } else {
    assert(aligned(data, dtype, index));
    auto* at = reinterpret_cast<Sixteen*>(static_cast<float*>(data) + index);
    Sixteen low, high;
    for (int i = 0; i < 4; ++i) {
      low.word[i] = std::bit_cast<uint32_t>(values.x[i]);
      high.word[i] = std::bit_cast<uint32_t>(values.x[4 + i]);
    }
    at[0] = low;
    at[1] = high;
  }
}

/// Whether x is infinite or NaN once stored as `dtype`: for bf16 and f16 from half-way between the
/// largest value and the next power of two on.
MUONRT_HOST_DEVICE inline bool not_finite_as(float x, DType dtype) {
  const uint32_t end = dtype == DType::kF32    ? 0x7f800000u
                       : dtype == DType::kBF16 ? 0x7f7f8000u
                                               : 0x477ff000u;
  return (std::bit_cast<uint32_t>(x) & 0x7fffffffu) >= end;
}

}  // namespace muonrt::cuda
