#pragma once

#include <cstddef>
#include <cstdint>

namespace muonrt {

/// Returns the CRC-32C (Castagnoli) of `bytes` bytes. To continue over several buffers, pass the
/// CRC of the preceding bytes as `before`. Source: RFC 3720, appendix B.4.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// Computes the same value with tables. crc32c() uses it if the processor has no CRC instruction.
uint32_t crc32c_by_tables(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace muonrt
