#pragma once

#include <bit>
#include <cstdint>

#include "backend/scalars.hpp"

// How bf16 weights and bf16 momentum keep or round away the bits that f32 has in addition; shared
// by every backend.

namespace muonrt {

/// An f32 weight as the bf16 value nearest to it (ties away from zero) and the lower half of its
/// own bits. Every pattern of 32 bits comes back: the addition and its inverse wrap.
struct SplitWeight {
  uint16_t high;  // bits of the bf16 parameter
  uint16_t low;   // remainder
};
MUONRT_HOST_DEVICE inline SplitWeight split_weight(float w) {
  const uint32_t bits = std::bit_cast<uint32_t>(w);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}
MUONRT_HOST_DEVICE inline float join_weight(uint16_t high, uint16_t low) {
  const uint32_t rounded_up = (low & 0x8000u) << 1;
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) + low - rounded_up);
}

/// Of a weight that was computed: a NaN, whose bits are each device's own (a GPU's 0x7fffffff would
/// leave -0 in the parameter), becomes the one that is NaN in bf16, too.
MUONRT_HOST_DEVICE inline SplitWeight split_updated(float w) {
  return split_weight(w == w ? w : std::bit_cast<float>(0x7fc00000u));
}

/// Elements that share a run of the generator: its 128 bits are 16 for each.
constexpr uint64_t kRandomBlock = 8;

struct RandomBlock {
  uint32_t word[4];

  /// 16 random bits of an element of the block.
  MUONRT_HOST_DEVICE uint32_t of(uint64_t element) const {
    const uint32_t low = element & 2 ? word[1] : word[0], high = element & 2 ? word[3] : word[2];
    return (element & 4 ? high : low) >> (element & 1 ? 16 : 0) & 0xffffu;
  }
};

/// Random bits for the elements [8 block, 8 block + 8) of one parameter in one step, whoever holds
/// them: Philox4x32-10. Source: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3.
MUONRT_HOST_DEVICE inline RandomBlock random_block(uint64_t seed, uint64_t step, uint32_t param,
                                                   uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = param, c3 = static_cast<uint32_t>(step);
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(step >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53u} * c0, b = uint64_t{0xcd9e8d57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The same for one element alone.
MUONRT_HOST_DEVICE inline uint32_t random_bits(uint64_t seed, uint64_t step, uint32_t param,
                                               uint64_t element) {
  return random_block(seed, step, param, element / kRandomBlock).of(element);
}

/// Exclusive or with the seed: momentum of bf16 is rounded by random bits that are independent of
/// those of the weights.
constexpr uint64_t kMomentumSeed = 0x6d6f6d656e74756d;

/// One of the two bf16 values next to w, the nearer one more often, so that the mean is w: 16
/// random bits are added below the cut. A finite w stays finite; bf16 values, infinities and NaN
/// are kept.
/// @param random  below 2^16.
MUONRT_HOST_DEVICE inline uint16_t round_stochastic(float w, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(w), size = bits & 0x7fffffffu;
  if (size >= 0x7f7f0000u)
    return size >= 0x7f800000u ? to_bf16(w).bits : static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits + random) >> 16);
}

}  // namespace muonrt
