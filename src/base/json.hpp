#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muonrt {

/// Writes a JSON value as text, member by member. The caller passes a function that fills each
/// object or list. Memory is allocated only for the text.
class JsonWriter {
 public:
  template <class Fill>
  void object(const Fill& fill) {
    open('{');
    fill();
    close('}');
  }
  template <class Fill>
  void list(const Fill& fill) {
    open('[');
    fill();
    close(']');
  }
  /// Writes the key of the next value.
  /// @param name  Printable ASCII text without quotes and backslashes.
  void key(std::string_view name);
  template <class T>
  void field(std::string_view name, const T& v) {
    key(name);
    value(v);
  }

  /// Writes a string. Invalid UTF-8 becomes U+FFFD.
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool v);
  /// Writes a number with enough digits to restore the same value, or null for infinity and NaN.
  void value(double v);
  template <std::integral T>
  requires(!std::same_as<T, bool>) void value(T v) {
    if constexpr (std::signed_integral<T>) {
      integer(static_cast<int64_t>(v));
    } else {
      integer(static_cast<uint64_t>(v));
    }
  }
  template <class T>
  void value(const std::vector<T>& items) {
    list([&] {
      for (const T& item : items) value(item);
    });
  }

  std::string take() { return std::move(text_); }

 private:
  void open(char bracket);
  void close(char bracket);
  void comma();
  void integer(int64_t v);
  void integer(uint64_t v);

  std::string text_;
  bool first_ = true;  // true if no comma is needed before the next value
};

}  // namespace muonrt
