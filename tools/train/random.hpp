#pragma once

#include <array>
#include <cstdint>

namespace muonrt::train {

/// Philox4x32-10: four random words that are a function of key and counter alone, so that any
/// rank can draw any number without the ones before it.
/// Source: Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3, section 3.3.
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// What a draw is for; keeps the streams of one seed apart.
enum class Stream : uint32_t { kInit = 1, kBatch = 2, kSample = 3 };

/// The four words at (`high`, `low`) of a stream; distinct positions have distinct counters as
/// long as `high` < 2^48.
inline std::array<uint32_t, 4> draw(uint64_t seed, Stream stream, uint64_t high, uint64_t low) {
  return philox(
      {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
       static_cast<uint32_t>(high >> 32) ^ (static_cast<uint32_t>(stream) << 16)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace muonrt::train
