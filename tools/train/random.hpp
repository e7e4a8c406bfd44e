#pragma once

#include <cstdint>

#include "backend/weight_bits.hpp"

namespace muonrt::train {

/// What a draw is for; keeps the streams of one seed apart.
enum class Stream : uint64_t { kInit = 1, kBatch = 2, kSample = 3 };

/// Four random words that follow from seed, stream, `high` and `low` alone, so that any rank can
/// draw any number without the ones before it.
inline RandomBlock draw(uint64_t seed, Stream stream, uint32_t high, uint64_t low) {
  return random_block(seed, static_cast<uint64_t>(stream) << 16, high, low);
}

}  // namespace muonrt::train
