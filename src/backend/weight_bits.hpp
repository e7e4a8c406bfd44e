#pragma once

#include <bit>
#include <cstdint>

#include "backend/scalars.hpp"

// Remainders of bf16 weights, and stochastic rounding of bf16 weights and momentum. All backends
// share these formulas.

namespace muonrt {

/// An f32 weight, split into the nearest bf16 value (ties away from zero) and the lower 16 bits of
/// the f32. join_weight() restores every bit pattern, because split_weight() adds, join_weight()
/// subtracts, and both wrap around.
struct SplitWeight {
  uint16_t high;  // bits of the bf16 parameter
  uint16_t low;   // the remainder
};
MUONRT_HOST_DEVICE inline SplitWeight split_weight(float w) {
  const uint32_t bits = std::bit_cast<uint32_t>(w);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}
MUONRT_HOST_DEVICE inline float join_weight(uint16_t high, uint16_t low) {
  const uint32_t rounded_up = (low & 0x8000u) << 1;
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) + low - rounded_up);
}

/// Like split_weight(), but for a weight that was computed. Replaces every NaN with one that is
/// also NaN in bf16. The bits of a computed NaN depend on the device, and 0x7fffffff, the NaN of a
/// GPU, would become -0 in the parameter.
MUONRT_HOST_DEVICE inline SplitWeight split_updated(float w) {
  return split_weight(w == w ? w : std::bit_cast<float>(0x7fc00000u));
}

/// Returns whether a weight differs bitwise from its rounded master weight. A commit rounds to
/// nearest. If the caller rounded the weight, both neighboring bf16 values are accepted.
MUONRT_HOST_DEVICE inline bool is_stale(bf16 weight, float master, bool by_caller) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  const uint32_t down = bits >> 16, up = down + ((bits & 0xffffu) != 0);
  const bool neighbor = (weight.bits == down) | (weight.bits == up);
  return by_caller ? !neighbor : weight.bits != to_bf16(master).bits;
}
MUONRT_HOST_DEVICE inline bool is_stale(float weight, float master, bool) {
  return std::bit_cast<uint32_t>(weight) != std::bit_cast<uint32_t>(master);
}

/// Number of elements that share one output of the random generator. Each element gets 16 of the
/// output's 128 bits.
constexpr uint64_t kRandomBlock = 8;

struct RandomBlock {
  uint32_t word[4];

  /// Returns the 16 random bits of an element in this block.
  MUONRT_HOST_DEVICE uint32_t of(uint64_t element) const {
    const uint32_t low = element & 2 ? word[1] : word[0], high = element & 2 ? word[3] : word[2];
    return (element & 4 ? high : low) >> (element & 1 ? 16 : 0) & 0xffffu;
  }
};

/// One round of Philox4x32.
MUONRT_HOST_DEVICE inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3,
                                            uint32_t k0, uint32_t k1) {
  const uint64_t a = uint64_t{0xd2511f53u} * c0, b = uint64_t{0xcd9e8d57u} * c2;
  c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(b);
  c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(a);
}

/// The key of a round of Philox4x32. next() changes it to that of the next round.
struct PhiloxKey {
  MUONRT_HOST_DEVICE PhiloxKey(uint64_t seed, uint64_t step)
      : k0(static_cast<uint32_t>(seed)),
        k1(static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(step >> 32)) {}
  MUONRT_HOST_DEVICE void next() {
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  uint32_t k0, k1;
};
constexpr int kPhiloxRounds = 10;

/// Returns the random bits for elements [8 block, 8 block + 8) of one parameter in one step. They
/// are the same on every rank. The generator is Philox4x32-10. Source: Salmon et al. 2011, Parallel
/// Random Numbers: As Easy as 1, 2, 3.
MUONRT_HOST_DEVICE inline RandomBlock random_block(uint64_t seed, uint64_t step, uint32_t param,
                                                   uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = param, c3 = static_cast<uint32_t>(step);
  PhiloxKey key(seed, step);
  for (int round = 0; round < kPhiloxRounds; ++round, key.next())
    philox_round(c0, c1, c2, c3, key.k0, key.k1);
  return {{c0, c1, c2, c3}};
}

/// Returns the random bits of one element.
MUONRT_HOST_DEVICE inline uint32_t random_bits(uint64_t seed, uint64_t step, uint32_t param,
                                               uint64_t element) {
  return random_block(seed, step, param, element / kRandomBlock).of(element);
}

/// For bf16 momentum, the seed is XORed with this value, so that the random bits for momentum are
/// independent of the random bits for weights.
constexpr uint64_t kMomentumSeed = 0x6d6f6d656e74756d;

/// Rounds w to one of its two neighboring bf16 values by adding 16 random bits and dropping the
/// lower 16 bits. The expected value of the result is therefore w. A finite w remains finite. bf16
/// values, infinities and NaN do not change.
/// @param random  Must be below 2^16.
MUONRT_HOST_DEVICE inline uint16_t round_stochastic(float w, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(w), size = bits & 0x7fffffffu;
  if (size >= 0x7f7f0000u)
    return size >= 0x7f800000u ? to_bf16(w).bits : static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits + random) >> 16);
}

}  // namespace muonrt
