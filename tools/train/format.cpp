#include "train/format.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace muonrt::train {

std::string fixed(double value, int decimals) {
  char digits[400];  // the largest double has 309 digits before the point
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, decimals).ptr;
  return std::string(digits, end);
}

std::string shortest(double value) {
  char digits[64];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

std::string with_commas(int64_t value) {
  std::string text = std::to_string(value);
  const int64_t first = text[0] == '-' ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string abbreviated(double value) {
  if (!(value >= 999.5)) return fixed(value, 0);
  if (value < 999950.0) return fixed(value / 1e3, 1) + "k";
  return fixed(value / 1e6, 1) + "M";
}

std::string clock_time(double seconds) {
  constexpr double kLongest = 359999.0;  // 99:59:59
  const double known = std::isnan(seconds) ? 0.0 : seconds;
  const auto total = static_cast<int64_t>(std::lround(std::clamp(known, 0.0, kLongest)));
  std::string text;
  auto append = [&](int64_t value) {  // two digits, but for the first number
    if (!text.empty()) text += value < 10 ? ":0" : ":";
    text += std::to_string(value);
  };
  if (total >= 3600) append(total / 3600);
  append(total / 60 % 60);
  append(total % 60);
  return text;
}

}  // namespace muonrt::train
