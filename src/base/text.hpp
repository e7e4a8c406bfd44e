#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace muonrt {

// Text that does not depend on the caller's locale: numbers go through std::to_chars only.

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, const std::string& text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
/// Of bool alone: a pointer would become one.
template <class T>
requires std::is_same_v<T, bool>
void append(std::string& out, T value) { out += value ? "true" : "false"; }
/// An address, as "0x7f00".
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

/// Lists print as [a, b, c].
template <class T>
void append(std::string& out, const std::vector<T>& list) {
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i) out += ", ";
    append(out, list[i]);
  }
  out += ']';
}

/// Concatenates strings and numbers.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

/// Of ASCII: what a terminal takes for a command.
constexpr bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// Text from outside for a message: quoted, control characters escaped.
std::string in_quotes(std::string_view text);

/// What is quoted ('...') and longer than 200 bytes is cut to its first 100, and says how long it
/// is: so a message keeps its end where a name is long.
std::string shorten_names(std::string text);

/// Number with a fixed count of decimals, independent of locale.
std::string fixed(double value, int decimals);

/// 1536 -> "1.5 KiB".
std::string human_bytes(int64_t bytes);

}  // namespace muonrt
