#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cassert>
#include <cstdint>

#include "backend/update_rules.hpp"
#include "base/dtype.hpp"
#include "cuda/kernels/ptx_half.cuh"
#include "cuda/kernels/ptx_vec16.cuh"

// Access to neighboring elements of an array whose dtype is known only at run time. The functions
// load the raw bits, widen them to f32, round and store. Code whose behavior depends on the dtype
// checks it only once, not for each element.

namespace muonrt::cuda {

/// Number of elements that a thread moves at once if the addresses are aligned: 16 bytes of bf16 or
/// f16, or twice 16 bytes of f32.
constexpr int kWidth = 8;

/// N raw elements of a dtype. A single two-byte element is in the lower half of its word.
template <int N>
struct Raw;
template <>
struct Raw<1> {
  uint32_t bits;
};
template <>
struct Raw<kWidth> {
  Vec16 low, high;
};

template <int N>
struct Values {
  float x[N];
};

/// The positions of the elements that the threads of a warp move at the same time. Each thread
/// moves kWidth elements.
enum class Lanes {
  kApart,  // the elements of different lanes are unrelated
  kPairs,  // all 32 lanes take part, and the elements of lane 2i + 1 follow those of lane 2i
};

/// Returns whether the address of element `index` is a multiple of 16 bytes.
__device__ inline bool aligned(const void* data, DType dtype, int64_t index) {
  const auto address =
      reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(index * size_of(dtype));
  return address % sizeof(Vec16) == 0;
}

/// Returns whether the distance between rows with this leading dimension is a multiple of 16 bytes.
__device__ inline bool aligned_stride(DType dtype, int64_t ld) {
  return ld * size_of(dtype) % static_cast<int64_t>(sizeof(Vec16)) == 0;
}

/// @param index  index of the first element; N == kWidth requires `aligned`.
template <int N>
__device__ inline Raw<N> load(const void* data, DType dtype, int64_t index) {
  Raw<N> out;
  if constexpr (N == 1) {
    out.bits = dtype == DType::kF32 ? static_cast<const uint32_t*>(data)[index]
                                    : static_cast<const uint16_t*>(data)[index];
  } else {
    assert(aligned(data, dtype, index));
    const char* const at = static_cast<const char*>(data) + index * size_of(dtype);
    out.low = load_vec16(at);
    if (dtype == DType::kF32) out.high = load_vec16(at + sizeof(Vec16));
  }
  return out;
}

template <int N>
__device__ inline uint16_t half_of(const Raw<N>& raw, int i) {
  if constexpr (N == 1) {
    return static_cast<uint16_t>(raw.bits);
  } else {
    return static_cast<uint16_t>(raw.low.word[i / 2] >> 16 * (i % 2));
  }
}

/// Keeps the bits of a NaN, because no manual defines how the conversion instruction changes them.
/// The host also keeps them.
__device__ inline float widen_f16(uint16_t bits) {
  const float x = widened<DType::kF16>(bits);
  const uint32_t nan = (bits & 0x8000u) << 16 | 0x7f800000u | (bits & 0x3ffu) << 13;
  return x == x ? x : std::bit_cast<float>(nan);
}

/// Widens one element with selections instead of branches.
__device__ inline float widen_one(uint32_t bits, DType dtype) {
  const float from_f16 = widen_f16(static_cast<uint16_t>(bits));
  const uint32_t word = dtype == DType::kBF16 ? bits << 16 : bits;
  return dtype == DType::kF16 ? from_f16 : std::bit_cast<float>(word);
}

template <int N>
__device__ inline Values<N> widen(const Raw<N>& raw, DType dtype) {
  Values<N> out;
  if constexpr (N == 1) {
    out.x[0] = widen_one(raw.bits, dtype);
  } else if (dtype == DType::kF32) {
    for (int i = 0; i < N / 2; ++i) {
      out.x[i] = std::bit_cast<float>(raw.low.word[i]);
      out.x[N / 2 + i] = std::bit_cast<float>(raw.high.word[i]);
    }
  } else if (dtype == DType::kBF16) {
    for (int i = 0; i < N; ++i) out.x[i] = widened<DType::kBF16>(half_of(raw, i));
  } else {
    for (int i = 0; i < N; ++i) out.x[i] = widen_f16(half_of(raw, i));
  }
  return out;
}

/// The raw bits of N two-byte elements.
template <int N>
struct Halves {
  uint16_t bits[N];
};

/// @param index  index of the first element; N == kWidth requires `aligned`.
template <int N>
__device__ inline Halves<N> load_halves(const uint16_t* data, int64_t index) {
  const Raw<N> raw = load<N>(data, DType::kBF16, index);
  Halves<N> out;
  for (int i = 0; i < N; ++i) out.bits[i] = half_of(raw, i);
  return out;
}

template <int N>
__device__ inline void store_halves(uint16_t* data, int64_t index, const Halves<N>& all) {
  if constexpr (N == 1) {
    data[index] = all.bits[0];
  } else {
    assert(aligned(data, DType::kBF16, index));
    const auto word = [&](int i) { return all.bits[2 * i] | uint32_t{all.bits[2 * i + 1]} << 16; };
    store_vec16(data + index, {{word(0), word(1), word(2), word(3)}});
  }
}

template <DType kElement, int N>
__device__ inline void store_rounded(uint16_t* data, int64_t index, const Values<N>& values) {
  if constexpr (N == 1) {
    data[index] = static_cast<uint16_t>(packed<kElement>(values.x[0], 0.0f));
  } else {
    assert(aligned(data, kElement, index));
    const auto word = [&](int i) { return packed<kElement>(values.x[2 * i], values.x[2 * i + 1]); };
    store_vec16(data + index, {{word(0), word(1), word(2), word(3)}});
  }
}

/// Stores two adjacent chunks of 16 bytes. With kPairs, two lanes first store the chunks of the
/// first lane with one instruction, and then the chunks of the second lane with another
/// instruction. Each instruction of a warp then stores whole sectors of 32 bytes. Without kPairs,
/// each instruction stores halves of twice as many sectors.
__device__ inline void store_chunks(void* to, const Vec16& low, const Vec16& high, Lanes lanes) {
  Vec16* const at = static_cast<Vec16*>(to);
  if (lanes == Lanes::kApart) {
    store_vec16(at, low);
    return store_vec16(at + 1, high);
  }
  const bool second = threadIdx.x % 2 != 0;
  Vec16 first, last;
  for (int i = 0; i < 4; ++i) {
    const uint32_t theirs = __shfl_xor_sync(0xffffffffu, second ? low.word[i] : high.word[i], 1);
    first.word[i] = second ? theirs : low.word[i];
    last.word[i] = second ? high.word[i] : theirs;
  }
  // Each lane must read before the other lane overwrites the memory. A shuffle does not order
  // memory accesses.
  __syncwarp();
  store_vec16(second ? at - 1 : at, first);
  store_vec16(second ? at + 1 : at + 2, last);
}

/// Rounds to `dtype`, ties to even, and stores the elements.
template <int N>
__device__ inline void store(void* data, DType dtype, int64_t index, const Values<N>& values,
                             Lanes lanes = Lanes::kApart) {
  if (dtype == DType::kBF16)
    return store_rounded<DType::kBF16>(static_cast<uint16_t*>(data), index, values);
  if (dtype == DType::kF16)
    return store_rounded<DType::kF16>(static_cast<uint16_t*>(data), index, values);
  if constexpr (N == 1) {
    static_cast<float*>(data)[index] = values.x[0];
  } else {
    assert(aligned(data, dtype, index));
    const auto word = [&](int i) { return std::bit_cast<uint32_t>(values.x[i]); };
    store_chunks(static_cast<float*>(data) + index, {{word(0), word(1), word(2), word(3)}},
                 {{word(4), word(5), word(6), word(7)}}, lanes);
  }
}

/// Returns the bits of the smallest magnitude that becomes infinite when it is stored as `dtype`.
/// For bf16 and f16, it is the midpoint between the largest finite value and the next power of two.
__device__ inline uint32_t end_of_finite(DType dtype) {
  return dtype == DType::kF32 ? 0x7f800000u : dtype == DType::kBF16 ? 0x7f7f8000u : 0x477ff000u;
}
__device__ inline bool not_finite_as(float x, DType dtype) {
  return (std::bit_cast<uint32_t>(x) & 0x7fffffffu) >= end_of_finite(dtype);
}

/// The largest magnitude of many values. A single test of it shows whether any of the values is
/// non-finite. Without signs, values have the same order as their bits, and NaN is above infinity.
struct Largest {
  uint32_t bits = 0;

  __device__ void take(float x) {
    const uint32_t size = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    bits = size > bits ? size : bits;
  }
  __device__ bool not_finite_as(DType dtype) const { return bits >= end_of_finite(dtype); }
};

}  // namespace muonrt::cuda
