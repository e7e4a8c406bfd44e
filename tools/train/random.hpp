#pragma once

#include <cstdint>

#include "backend/weight_bits.hpp"

namespace muonrt::train {

/// The purposes of random numbers. For each seed, every purpose has a separate stream of numbers.
enum class Stream : uint64_t { kInit = 1, kBatch = 2 };

/// Returns four random words. They depend only on seed, stream, `high` and `low`, so every rank can
/// compute any of them directly.
inline RandomBlock draw(uint64_t seed, Stream stream, uint32_t high, uint64_t low) {
  return random_block(seed, static_cast<uint64_t>(stream) << 16, high, low);
}

}  // namespace muonrt::train
