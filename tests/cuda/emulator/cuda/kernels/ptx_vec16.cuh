#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace muonrt::cuda {

struct [[gnu::may_alias]] alignas(16) Vec16 {
  uint32_t word[4];
};

inline void require_sixteen(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Vec16) != 0)
    throw std::logic_error("an access of 16 bytes is not aligned");
}

inline Vec16 load_vec16(const void* from) {
  require_sixteen(from);
  Vec16 x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store_vec16(void* to, const Vec16& x) {
  require_sixteen(to);
  std::memcpy(to, &x, sizeof x);
}

}  // namespace muonrt::cuda
