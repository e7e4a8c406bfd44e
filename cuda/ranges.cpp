#include "cuda/ranges.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define MUONRT_HAS_NVTX 1
#endif

namespace muonrt::cuda {

#ifdef MUONRT_HAS_NVTX

void push_range(const char* name, int64_t number) noexcept {
  if (number < 0) {
    nvtxRangePushA(name);
    return;
  }
  char text[64] = "muonrt";
  const size_t length = std::min(std::strlen(name), size_t{40});
  std::memcpy(text, name, length);
  text[length] = ' ';
  *std::to_chars(text + length + 1, text + sizeof text - 1, number).ptr = 0;
  nvtxRangePushA(text);
}

void pop_range() noexcept { nvtxRangePop(); }

#else

void push_range(const char*, int64_t) noexcept {}
void pop_range() noexcept {}

#endif

}  // namespace muonrt::cuda
