#pragma once

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace muonrt {

/// Returns the number of bytes in a text such as 4096, 1e9, 64KiB, 1.5GiB or 5GB. K means KiB, M
/// means MiB, and so on. For any other text, and for 2^63 bytes or more, returns nothing.
inline std::optional<int64_t> parse_bytes(const std::string& text) {
  // from_chars does not depend on the caller's locale.
  long double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest_of_text, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return {};
  std::string unit;
  for (const char* at = rest_of_text; at != end; ++at)
    if (*at != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*at)));
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

}  // namespace muonrt
