#include "base/text.hpp"

#include <algorithm>

namespace muonrt {

namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Returns the position of the closing quotation mark for the opening one at `at`. An apostrophe
/// inside a word does not end a quotation.
size_t end_of_quotation(const std::string& text, size_t at) {
  size_t end = text.find('\'', at + 1);
  while (end != std::string::npos && end + 1 < text.size() && word(text[end + 1]))
    end = text.find('\'', end + 1);
  return end;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text) {
    if (is_control(c)) {
      out += cat("\\x", kDigits[static_cast<unsigned char>(c) >> 4], kDigits[c & 15]);
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shorten_names(std::string text) {
  constexpr size_t kLong = 200, kShown = 100;
  for (size_t at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 1)) {
    if (at > 0 && word(text[at - 1])) continue;
    const size_t end = end_of_quotation(text, at);
    if (end == std::string::npos) break;
    const size_t length = end - at - 1;
    size_t shown = std::min(length, kShown);
    if (length > kLong) {
      while (shown > 0 && continues(text[at + 1 + shown])) --shown;
      text.replace(at + 1 + shown, length - shown + 1, cat("...' (", length, " bytes)"));
      shown += 3;
    } else {
      shown = length;
    }
    at += shown + 1;
  }
  return text;
}

std::string fixed(double value, int decimals) {
  char digits[512];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, decimals).ptr;
  return {digits, end};
}

std::string human_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 5) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? cat(bytes, " B") : cat(fixed(value, value < 10 ? 2 : 1), " ", kUnits[unit]);
}

}  // namespace muonrt
