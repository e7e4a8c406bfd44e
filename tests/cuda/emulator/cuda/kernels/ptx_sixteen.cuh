#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace muonrt::cuda {

struct [[gnu::may_alias]] alignas(16) Sixteen {
  uint32_t word[4];
};

inline void require_sixteen(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Sixteen) != 0)
    throw std::logic_error("an access to 16 bytes that are not aligned");
}

inline Sixteen load_sixteen(const void* from) {
  require_sixteen(from);
  Sixteen x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store_sixteen(void* to, const Sixteen& x) {
  require_sixteen(to);
  std::memcpy(to, &x, sizeof x);
}

}  // namespace muonrt::cuda
