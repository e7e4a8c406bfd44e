#pragma once

#include <cstddef>
#include <cstdint>

namespace muonrt {

/// CRC-32C (Castagnoli) of `bytes`; `before`: that of what stands in front of them.
/// Source: RFC 3720, appendix B.4.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// The same by tables, as where the processor has no instruction for it.
uint32_t crc32c_by_tables(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace muonrt
