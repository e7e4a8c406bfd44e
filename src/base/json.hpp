#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muonrt {

/// Writes a JSON value as text, member by member: a plan of 70,000 tensors takes no memory but its
/// text. An object or a list is filled by a function, and closes behind it.
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
  /// Of the member whose value follows: plain ASCII without quotes and backslashes.
  void key(std::string_view name);
  template <class T>
  void field(std::string_view name, const T& v) {
    key(name);
    value(v);
  }

  /// Bytes that are not UTF-8 become U+FFFD.
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool v);
  /// Reads back as the same number; null where it is none.
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
  bool first_ = true;  // of what is open, or the value of a member
};

}  // namespace muonrt
