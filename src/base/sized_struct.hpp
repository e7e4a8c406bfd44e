#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace muonrt {

/// Fills a public struct of `size` bytes, as the program's headers give it, which may be older or
/// newer than this library: what `set` makes of zeros, its size, zeros behind. Null: nothing.
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
