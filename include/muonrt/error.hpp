/// @file muonrt/error.hpp
/// The part of muonrt/muonrt.hpp that converts statuses to exceptions. Header-only.
#ifndef MUONRT_ERROR_HPP
#define MUONRT_ERROR_HPP

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "muonrt/base.h"

namespace muonrt {
// If a program links libmuonrt statically, the library's own symbols are also in namespace muonrt.
// The inline namespace keeps the symbols of this header distinct from them.
inline namespace v0 {

/// The exception that check() throws if a call has returned an error. what() contains the name of
/// the status and the text of muonrt_get_last_error().
class Error : public std::runtime_error {
 public:
  /// @param status  The status of the last call that failed on this thread.
  explicit Error(muonrt_status_t status)
      : std::runtime_error(std::string(muonrt_status_get_name(status)) + ": " +
                           muonrt_get_last_error()),
        status_(status) {}
  /// @return The status, one of MUONRT_ERROR_*.
  muonrt_status_t status() const noexcept { return status_; }

 private:
  muonrt_status_t status_;
};

/// Returns `status` if it is MUONRT_OK or MUONRT_SKIPPED. Throws Error for any other status.
inline muonrt_status_t check(muonrt_status_t status) {
  if (status != MUONRT_OK && status != MUONRT_SKIPPED) throw Error(status);
  return status;
}

namespace detail {
/// Returns the value that `call(&value, arguments...)` writes.
template <class T, class Call, class... Arguments>
T value(Call call, Arguments... arguments) {
  T out{};
  check(call(&out, arguments...));
  return out;
}

/// Returns the whole text that `call(buffer, capacity, needed)` writes.
template <class Call>
std::string text(Call call) {
  int64_t needed = 0;
  check(call(nullptr, 0, &needed));
  std::string out(static_cast<std::string::size_type>(needed), '\0');
  check(call(&out[0], needed + 1, &needed));
  return out;
}

/// Returns the lines of the text that `call` writes.
template <class Call>
std::vector<std::string> lines(Call call) {
  const std::string all = text(call);
  std::vector<std::string> out;
  for (std::string::size_type at = 0; at < all.size(); at += out.back().size() + 1)
    out.push_back(all.substr(at, all.find('\n', at) - at));
  return out;
}

/// Returns a struct in which `init` has set all fields to their defaults.
template <class T>
T filled(void (*init)(T*, uint32_t)) {
  T out;
  init(&out, sizeof out);
  return out;
}
}  // namespace detail

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_ERROR_HPP
