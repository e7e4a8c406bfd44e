#include "base/crc32c.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace muonrt;

namespace {

/// Computes the CRC bit by bit from its definition.
uint32_t long_division(const std::vector<unsigned char>& data, size_t from, size_t bytes) {
  uint32_t crc = 0xffffffff;
  for (size_t i = from; i < from + bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

}  // namespace

TEST_CASE("crc32c: the vectors of RFC 3720 and of the catalogue", "[unit][base]") {
  std::string ascending(32, 0), descending(32, 0);
  for (int i = 0; i < 32; ++i) {
    ascending[static_cast<size_t>(i)] = static_cast<char>(i);
    descending[static_cast<size_t>(i)] = static_cast<char>(31 - i);
  }
  for (const auto crc : crc32c_functions()) {
    CHECK(crc("123456789", 9, 0) == 0xe3069283);
    CHECK(crc(std::string(32, '\0').data(), 32, 0) == 0x8a9136aa);
    CHECK(crc(std::string(32, '\xff').data(), 32, 0) == 0x62a8ab43);
    CHECK(crc(ascending.data(), 32, 0) == 0x46dd794e);
    CHECK(crc(descending.data(), 32, 0) == 0x113fdb5c);
    CHECK(crc("", 0, 0) == 0);
    CHECK(crc("56789", 5, crc("1234", 4, 0)) == 0xe3069283);
  }
}

TEST_CASE("crc32c: equals long division at any length and offset", "[unit][base]") {
  std::vector<unsigned char> data(3 * 6144 + 40);
  uint32_t state = 1;
  for (unsigned char& byte : data)
    byte = static_cast<unsigned char>((state = state * 1664525 + 1013904223) >> 24);
  for (const size_t from : {0, 1, 7}) {
    for (const size_t bytes :
         {1, 7, 8, 9, 63, 1023, 1024, 1279, 2048, 6143, 6144, 6145, 12288, 18432, 18471}) {
      const size_t n = bytes - (bytes == 18471 ? from : 0), half = n / 2;
      const uint32_t expected = long_division(data, from, n);
      CHECK(crc32c(data.data() + from, n) == expected);
      for (const auto crc : crc32c_functions()) {
        CHECK(crc(data.data() + from, n, 0) == expected);
        const uint32_t before = crc(data.data() + from, half, 0);
        CHECK(crc(data.data() + from + half, n - half, before) == expected);
      }
    }
  }
}
