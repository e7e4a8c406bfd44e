#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muonrt {

/// Returns the CRC-32C (Castagnoli) of `bytes` bytes. To continue over multiple buffers, pass the
/// CRC of the preceding bytes as `before`. Source: RFC 3720, appendix B.4.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// Returns all functions that compute this CRC and run on this processor. The fastest one is last,
/// and crc32c() calls it; the tests check all of them.
using Crc32c = uint32_t (*)(const void* data, size_t bytes, uint32_t before);
std::span<const Crc32c> crc32c_functions();

}  // namespace muonrt
