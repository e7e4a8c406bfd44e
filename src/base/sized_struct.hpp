#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace muonrt {

/// Initializes a public struct. `size` is its size in bytes in the program's headers, which may be
/// older or newer than the library. `set` fills the fields that the library knows. If the program's
/// struct is longer, its remaining bytes become 0. If it is shorter, the fields beyond its end are
/// not written. `size` itself is written into the first four bytes. Does nothing if `to` is null.
template <class T, class Set>
void fill_sized(T* to, uint32_t size, Set set) {
  if (!to) return;
  T defaults{};
  set(defaults);
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &defaults, std::min<size_t>(size, sizeof defaults));
  std::memcpy(static_cast<void*>(to), &size, std::min<size_t>(size, sizeof size));
}
template <class T>
void fill_sized(T* to, uint32_t size) {
  fill_sized(to, size, [](T&) {});
}

}  // namespace muonrt
