#pragma once

#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace muonrt::tool {

/// Returns the number of bytes in a text such as 4096, 1e9, 64KiB, 1.5GiB or 5GB. K means KiB, M
/// means MiB, and so on. For any other text, and for 2^63 bytes or more, returns nothing.
inline std::optional<int64_t> parse_bytes(const std::string& text) {
  char* end = nullptr;
  const long double number = std::strtold(text.c_str(), &end);
  std::string unit;
  for (; *end != 0; ++end)
    if (*end != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*end)));
  const size_t power = unit.empty() ? 0 : std::string("bkmgtp").find(unit[0]);
  const std::string rest = unit.substr(unit.empty() ? 0 : 1);
  const bool decimal = rest == "b",
             known = rest.empty() || (power > 0 && (decimal || rest == "ib"));
  if (power == std::string::npos || !known) return {};
  const long double bytes =
      number * std::pow(decimal ? 1000.0L : 1024.0L, static_cast<long double>(power));
  const bool whole = power > 0 || bytes == std::floor(bytes);
  if (!(bytes >= 0 && bytes < 0x1p63L && whole)) return {};
  return static_cast<int64_t>(bytes);
}

}  // namespace muonrt::tool
