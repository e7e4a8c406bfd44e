#include "base/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace muonrt {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits in reverse order
using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// Returns tables in which tables[k][b] is the CRC of the byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables out{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    out[0][b] = crc;
  }
  for (size_t k = 1; k < out.size(); ++k) {
    for (size_t b = 0; b < 256; ++b) out[k][b] = out[0][out[k - 1][b] & 255] ^ (out[k - 1][b] >> 8);
  }
  return out;
}
constexpr Tables kTables = make_tables();

uint64_t word_at(const unsigned char* at) {
  uint64_t out;
  std::memcpy(&out, at, sizeof out);
  return out;
}

#if defined(__x86_64__)

// The CRC instruction can start once per cycle and has a latency of three cycles, so three adjacent
// ranges of kStretch bytes are processed at the same time. Appending kStretch zero bytes to a range
// ("shifting" its CRC) makes it possible to combine the three CRCs with XOR.
constexpr size_t kStretch = 2048;
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t i = 0; i < of_bit.size(); ++i) {
    uint32_t crc = uint32_t{1} << i;
    for (size_t n = 0; n < kStretch; ++n) crc = kTables[0][crc & 255] ^ (crc >> 8);
    of_bit[i] = crc;
  }
  Shift out{};
  for (size_t i = 0; i < of_bit.size(); ++i) {
    for (size_t b = 0; b < 256; ++b)
      if (b >> (i % 8) & 1) out[i / 8][b] ^= of_bit[i];
  }
  return out;
}
constexpr Shift kShift = make_shift();

uint64_t shifted(uint64_t crc) {
  return kShift[0][crc & 255] ^ kShift[1][crc >> 8 & 255] ^ kShift[2][crc >> 16 & 255] ^
         kShift[3][crc >> 24 & 255];
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t before, const unsigned char* at,
                                                          size_t bytes) {
  uint64_t crc = before;
  for (; bytes >= 3 * kStretch; bytes -= 3 * kStretch, at += 3 * kStretch) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      crc = __builtin_ia32_crc32di(crc, word_at(at + i));
      second = __builtin_ia32_crc32di(second, word_at(at + kStretch + i));
      third = __builtin_ia32_crc32di(third, word_at(at + 2 * kStretch + i));
    }
    crc = shifted(shifted(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, at += 8) crc = __builtin_ia32_crc32di(crc, word_at(at));
  auto out = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++at) out = __builtin_ia32_crc32qi(out, *at);
  return out;
}

#endif

}  // namespace

uint32_t crc32c_by_tables(const void* data, size_t bytes, uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    const uint64_t word = word_at(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; --bytes, ++at) crc = kTables[0][(crc ^ *at) & 255] ^ (crc >> 8);
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction)
    return ~by_instruction(~before, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_by_tables(data, bytes, before);
}

}  // namespace muonrt
