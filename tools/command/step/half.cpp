#include "command/step/half.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace muonrt::tool {

namespace {

float from_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace

float element_as_float(std::string_view dtype, const unsigned char* at) {
  if (dtype == "F32") {
    float out;
    std::memcpy(&out, at, 4);
    return out;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return dtype == "F16" ? from_f16(bits) : std::bit_cast<float>(uint32_t{bits} << 16);
}

void widen(std::string_view dtype, const std::vector<unsigned char>& from, unsigned char* out) {
  const size_t bytes = dtype == "F32" ? 4 : 2;
  for (size_t i = 0; i < from.size() / bytes; ++i) {
    const float value = element_as_float(dtype, from.data() + i * bytes);
    std::memcpy(out + i * 4, &value, 4);
  }
}

}  // namespace muonrt::tool
