#include "backend/weight_bits.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace muonrt;

namespace {

/// Checks all values of the high half, each with every `stride`-th value of the low half, including
/// the first value and the last.
void check_halves(uint32_t stride) {
  uint64_t wrong = 0, far = 0;
  for (uint32_t high = 0; high < 1u << 16; ++high) {
    uint32_t wrong_here = 0, far_here = 0;
    for (uint32_t low = 0; low < 1u << 16; low += stride) {
      const uint32_t bits = high << 16 | low;
      const SplitWeight split = split_weight(std::bit_cast<float>(bits));
      wrong_here += std::bit_cast<uint32_t>(join_weight(split.high, split.low)) != bits;
      // The high half may differ from the weight by at most half the distance between adjacent bf16
      // values. The bits of adjacent values with the same sign are consecutive.
      const uint32_t back = static_cast<uint32_t>(split.high) << 16;
      far_here += back - bits + 0x7fffu > 0xffffu;
    }
    wrong += wrong_here;
    far += far_here;
  }
  CHECK(wrong == 0);
  CHECK(far == 0);
}

}  // namespace

TEST_CASE("weight bits: a bf16 value and 16 more bits are an f32, bit for bit",
          "[unit][backend][nosan]") {
  check_halves(257);  // low halves 0, 257, ..., 65535
  for (const uint32_t high : {0u, 0x3f80u, 0x7f7fu, 0x7f80u, 0x8000u, 0xffffu}) {
    for (const uint32_t low : {0x7ffeu, 0x7fffu, 0x8000u, 0x8001u}) {
      const uint32_t bits = high << 16 | low;
      const SplitWeight split = split_weight(std::bit_cast<float>(bits));
      CHECK(std::bit_cast<uint32_t>(join_weight(split.high, split.low)) == bits);
    }
  }
}

TEST_CASE("weight bits: every f32 is a bf16 value and 16 more bits", "[.full]") { check_halves(1); }

TEST_CASE("weight bits: the bf16 half is the rounded master weight, except for exact ties",
          "[unit][backend]") {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 9973) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!std::isfinite(x) || (bits & 0xffffu) == 0x8000u) continue;
    REQUIRE(split_weight(x).high == to_bf16(x).bits);
  }
  CHECK(split_weight(1.00390625f).high == 0x3f81);  // a tie is rounded away from zero
  CHECK(split_weight(-1.00390625f).high == 0xbf81);
}

TEST_CASE("weight bits: every NaN becomes the same NaN, which is also NaN in bf16",
          "[unit][backend]") {
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f800001u, 0xffbfffffu}) {
    const SplitWeight split = split_updated(std::bit_cast<float>(bits));
    CHECK(split.high == 0x7fc0);
    CHECK(split.low == 0);
  }
  CHECK(split_updated(-0.0f).high == 0x8000);
  CHECK(split_updated(INFINITY).high == 0x7f80);
}

TEST_CASE("weight bits: random bits are Philox's", "[unit][backend]") {
  // The test vectors of Random123 (kat_vectors, philox4x32 with 10 rounds).
  const auto check = [](const RandomBlock& block, const std::array<uint32_t, 4>& words) {
    for (size_t i = 0; i < 4; ++i) CHECK(block.word[i] == words[i]);
    for (uint64_t e = 0; e < kRandomBlock; ++e)
      CHECK(block.of(8000 + e) == (words[e / 2] >> 16 * (e % 2) & 0xffffu));
  };
  check(random_block(0, 0, 0, 0), {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  // The high half of the step is mixed into the key. If both high halves are 0xffffffff, they
  // cancel in the upper word of the key.
  check(random_block(0x00000000ffffffffu, 0xffffffffffffffffu, 0xffffffffu, 0xffffffffffffffffu),
        {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  check(random_block(0x299f31d0a4093822u, 0x03707344u, 0x13198a2eu, 0x85a308d3243f6a88u),
        {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
  CHECK(random_bits(7, 3, 2, 8 * 1234567 + 5) == random_block(7, 3, 2, 1234567).of(5));
}

TEST_CASE("weight bits: stochastic rounding keeps the mean and exact values", "[unit][backend]") {
  // This value is a quarter of the way from 1 to the next bf16 value.
  const float x = std::bit_cast<float>(0x3f804000u);
  int64_t up = 0;
  for (uint64_t i = 0; i < 1 << 16; ++i) {
    const uint16_t rounded = round_stochastic(x, random_bits(1, 2, 3, i));
    REQUIRE((rounded == 0x3f80 || rounded == 0x3f81));
    up += rounded == 0x3f81;
  }
  // The number of values that are rounded up has a binomial distribution with mean 16384 and
  // standard deviation 111.
  CHECK(std::abs(up - 16384) < 6 * 111);
  // If each value of the random bits occurs once, the mean of the rounded values is exact.
  for (const uint32_t low : {0x0001u, 0x4000u, 0x8000u, 0xffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float w = std::bit_cast<float>(sign | 0x40490000u | low);
      uint32_t larger = 0;
      for (uint32_t r = 0; r < 1u << 16; ++r)
        larger += round_stochastic(w, r) == static_cast<uint16_t>((sign >> 16) | 0x404au);
      CHECK(larger == low);
    }
  }
  for (const uint32_t random : {0u, 0x7fffu, 0xffffu}) {
    CHECK(round_stochastic(-3.0f, random) == to_bf16(-3.0f).bits);
    CHECK(round_stochastic(0.0f, random) == 0);
    CHECK(round_stochastic(std::numeric_limits<float>::max(), random) == 0x7f7f);
    CHECK(round_stochastic(std::numeric_limits<float>::infinity(), random) == 0x7f80);
    CHECK(std::isnan(
        to_f32(bf16{round_stochastic(std::numeric_limits<float>::quiet_NaN(), random)})));
  }
}
