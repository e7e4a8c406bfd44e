#include "cuda/device/nvtx_ranges.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define MUONRT_HAS_NVTX 1
#endif

namespace muonrt::cuda {

#ifdef MUONRT_HAS_NVTX

namespace {

/// Returns null if no profiler is attached.
nvtxDomainHandle_t domain() noexcept {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("muonrt");
  return made;
}

}  // namespace

void push_range(const char* name, int64_t number) noexcept {
  if (!domain()) return;
  nvtxEventAttributes_t range = {};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  char text[64];
  if (number >= 0) {
    const size_t length = std::min(std::strlen(name), size_t{40});
    std::memcpy(text, name, length);
    text[length] = ' ';
    *std::to_chars(text + length + 1, text + sizeof text - 1, number).ptr = 0;
    range.message.ascii = text;
    range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    range.payload.llValue = number;
  }
  nvtxDomainRangePushEx(domain(), &range);
}

void pop_range() noexcept {
  if (domain()) nvtxDomainRangePop(domain());
}

#else

void push_range(const char*, int64_t) noexcept {}
void pop_range() noexcept {}

#endif

}  // namespace muonrt::cuda
