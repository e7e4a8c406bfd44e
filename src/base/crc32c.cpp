#include "base/crc32c.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>
#include <bit>
#include <cstring>

namespace muonrt {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits in reverse order
using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// Returns tables, where tables[k][b] is the CRC of the byte b followed by k zero bytes.
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

// The CRC instruction can start once per cycle and has a latency of three cycles, so the code
// processes three adjacent ranges of kStretch bytes at the same time. Before it combines the three
// CRCs with XOR, it "shifts" a CRC, which means that it appends kStretch zero bytes to the range of
// this CRC.
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

__attribute__((target("sse4.2"))) uint32_t by_instruction(const void* data, size_t bytes,
                                                          uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t crc = ~before;
  for (; bytes >= 3 * kStretch; bytes -= 3 * kStretch, at += 3 * kStretch) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      // The processor's own prefetching does not follow three ranges of only 2 KiB each.
      for (size_t k = 3; i % 64 == 0 && k < 6; ++k) __builtin_prefetch(at + k * kStretch + i);
      crc = __builtin_ia32_crc32di(crc, word_at(at + i));
      second = __builtin_ia32_crc32di(second, word_at(at + kStretch + i));
      third = __builtin_ia32_crc32di(third, word_at(at + 2 * kStretch + i));
    }
    crc = shifted(shifted(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, at += 8) crc = __builtin_ia32_crc32di(crc, word_at(at));
  auto out = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++at) out = __builtin_ia32_crc32qi(out, *at);
  return ~out;
}

/// Returns x^n modulo the polynomial, as a factor of a carry-less product of 64 bits.
constexpr long long power_of_x(int n) {
  uint32_t out = uint32_t{1} << 31;  // the bits are in reverse order
  for (; n > 0; --n) out = (out >> 1) ^ (out & 1 ? kPolynomial : 0);
  return static_cast<long long>(uint64_t{out} << 32);
}

// The number of bytes that one step of by_products() processes.
constexpr size_t kStep = 256;

/// Repeatedly replaces the first kStep bytes with an equivalent change of the bytes that follow,
/// until only the last kStep bytes remain. Source: Gopal et al. 2009, "Fast CRC Computation for
/// Generic Polynomials Using PCLMULQDQ Instruction".
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t by_products(const void* data,
                                                                          size_t bytes,
                                                                          uint32_t before) {
  if (bytes < 4 * kStep) return by_instruction(data, bytes, before);
  const auto* at = static_cast<const unsigned char*>(data);
  constexpr size_t kLanes = kStep / sizeof(__m512i);
  // A product of two numbers in reverse bit order has an additional factor of x.
  constexpr long long kLow = power_of_x(8 * kStep + 63), kHigh = power_of_x(8 * kStep - 1);
  const __m512i powers = _mm512_set4_epi64(kHigh, kLow, kHigh, kLow);
  __m512i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = _mm512_loadu_si512(at + i * sizeof lanes[0]);
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(~before));
  lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(start));
  for (at += kStep, bytes -= kStep; bytes >= kStep; at += kStep, bytes -= kStep) {
    for (size_t i = 0; i < kLanes; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(lanes[i], powers, 0x00),
                    high = _mm512_clmulepi64_epi128(lanes[i], powers, 0x11);
      lanes[i] = _mm512_xor_si512(_mm512_xor_si512(low, high),
                                  _mm512_loadu_si512(at + i * sizeof lanes[0]));
    }
  }
  unsigned char last[kStep];
  std::memcpy(last, lanes, kStep);
  return by_instruction(at, bytes, by_instruction(last, kStep, ~uint32_t{0}));
}

#endif

uint32_t by_tables(const void* data, size_t bytes, uint32_t before) {
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

}  // namespace

std::span<const Crc32c> crc32c_functions() {
#if defined(__x86_64__)
  static constexpr Crc32c kAll[] = {by_tables, by_instruction, by_products};
  if (!__builtin_cpu_supports("sse4.2")) return {kAll, 1};
  const bool products = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
  return {kAll, products ? size_t{3} : size_t{2}};
#else
  static constexpr Crc32c kAll[] = {by_tables};
  return kAll;
#endif
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  static const Crc32c fastest = crc32c_functions().back();
  return fastest(data, bytes, before);
}

}  // namespace muonrt
