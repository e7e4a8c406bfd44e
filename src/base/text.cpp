#include "base/text.hpp"

#include <algorithm>

namespace muonrt {

namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// Bytes of the UTF-8 character that `text` begins with; 0 if it is none.
/// Source: RFC 3629, section 4.
size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second >= 0xa0;
  const bool too_large = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : bytes;
}

bool word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Where the quotation ends that begins after `at`: not at an apostrophe inside of a word.
size_t end_of_quotation(const std::string& text, size_t at) {
  size_t end = text.find('\'', at + 1);
  while (end != std::string::npos && end + 1 < text.size() && word(text[end + 1]))
    end = text.find('\'', end + 1);
  return end;
}

}  // namespace

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

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const auto u = static_cast<unsigned char>(c);
    const size_t bytes = character_bytes(text.substr(at));
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      out += "\\u00";
      out += kHex[u >> 4];
      out += kHex[u & 15];
    } else {
      out += text.substr(at, bytes);
    }
    at += std::max<size_t>(bytes, 1);
  }
  return out + '"';
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
