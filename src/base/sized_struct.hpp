#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace muonrt {

/// Initializes a public struct of `size` bytes, the size in the program's headers, which may be
/// older or newer than the library. `set` fills the fields that the library knows; a longer struct
/// gets zeros at the end. The first four bytes become `size`. If `to` is null, does nothing.
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
