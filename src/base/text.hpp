#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace muonrt {

// These functions format all numbers with std::to_chars, so the text does not depend on the
// caller's locale.

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, const std::string& text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
/// A template with a constraint, because a pointer would otherwise be converted to bool.
template <class T>
requires std::is_same_v<T, bool>
void append(std::string& out, T value) { out += value ? "true" : "false"; }
/// Appends an address in hexadecimal digits, such as "0x7f00".
inline void append(std::string& out, const void* address) {
  char digits[16];
  const auto bits = reinterpret_cast<uintptr_t>(address);
  out.append("0x").append(digits, std::to_chars(digits, digits + sizeof digits, bits, 16).ptr);
}

template <class T>
requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
         !std::is_same_v<T, char>) void append(std::string& out, T value) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

/// Appends a list in the form [a, b, c].
template <class T>
void append(std::string& out, const std::vector<T>& list) {
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i) out += ", ";
    append(out, list[i]);
  }
  out += ']';
}

/// Concatenates strings, numbers and lists.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

/// Returns true for an ASCII control character.
constexpr bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// Puts a string from outside the library in quotation marks for a message. Escapes control
/// characters.
std::string in_quotes(std::string_view text);

/// Shortens quoted names: each part in quotation marks ('...') of more than 200 bytes becomes its
/// first 100 bytes and its length. A message with a long name then still contains the text after
/// the name.
std::string shorten_names(std::string text);

/// Formats a number with `decimals` digits after the decimal point, independently of the locale.
std::string fixed(double value, int decimals);

/// Formats a size with a binary unit: 1536 becomes "1.5 KiB".
std::string human_bytes(int64_t bytes);

}  // namespace muonrt
