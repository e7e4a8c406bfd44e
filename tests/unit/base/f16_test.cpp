#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.hpp"
#include "reference/reference.hpp"

using namespace muonrt;

TEST_CASE("f16: every pattern converts to its value and back", "[unit][base]") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 x{static_cast<uint16_t>(bits)};
    const double expected = reference::half_value(x.bits);
    const float wide = to_f32(x);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(wide));
      REQUIRE((to_f16(wide).bits & 0x7e00) == 0x7e00);
      continue;
    }
    REQUIRE(static_cast<double>(wide) == expected);
    REQUIRE(std::signbit(wide) == (bits >> 15 != 0));
    REQUIRE(to_f16(wide).bits == x.bits);
  }
}

TEST_CASE("f16: narrowing rounds to nearest, ties to even", "[unit][base]") {
  const float inf = std::numeric_limits<float>::infinity();
  for (uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = reference::half_value(bits);
    // The value after the largest f16 value is treated as 65536 instead of infinity.
    const double high = bits + 1 == 0x7c00 ? 65536.0 : reference::half_value(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    REQUIRE(static_cast<double>(middle) == (low + high) / 2);
    const auto even = static_cast<uint16_t>(bits + bits % 2);
    REQUIRE(to_f16(middle).bits == even);
    REQUIRE(to_f16(-middle).bits == (even | 0x8000));
    REQUIRE(to_f16(std::nextafter(middle, 0.0f)).bits == bits);
    REQUIRE(to_f16(std::nextafter(middle, inf)).bits == bits + 1);
    REQUIRE(reference::half_bits(static_cast<double>(middle)) == even);
    REQUIRE(reference::half_bits(std::nextafter((low + high) / 2, 0.0)) == bits);
  }
  CHECK(to_f16(inf).bits == 0x7c00);
  CHECK(to_f16(-1e30f).bits == 0xfc00);
  CHECK(to_f16(1e-30f).bits == 0);
  CHECK(to_f16(-1e-40f).bits == 0x8000);
}
