#pragma once

#include <cstdint>

#include "backend/device.hpp"

namespace muonrt {

/// An allocator that the caller supplies, such as a framework's caching allocator. It has the same
/// fields as muonrt_allocator_t. If its functions are null, the device allocates memory itself.
struct Allocator {
  void* state = nullptr;
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream) = nullptr;
  void (*release)(void* state, void* memory, int64_t bytes, int32_t device, void* stream) = nullptr;

  /// Calls `allocate`. Errors: OUT_OF_MEMORY if `allocate` returns NULL; INVALID_ARGUMENT if the
  /// memory is not aligned to kMemoryAlignment. Before this function throws INVALID_ARGUMENT, it
  /// releases the memory.
  void* take(int64_t bytes, int32_t device, void* stream) const {
    void* const memory = allocate(state, bytes, device, stream);
    MUONRT_REQUIRE(memory, Status::kOutOfMemory, "options: allocator: allocate returned NULL for ",
                   human_bytes(bytes), "; reduce chunk_bytes or window, or use more ranks");
    const auto remainder = reinterpret_cast<uintptr_t>(memory) % kMemoryAlignment;
    if (remainder != 0) release(state, memory, bytes, device, stream);
    MUONRT_REQUIRE(remainder == 0, Status::kInvalidArgument,
                   "options: allocator: allocate returned ", memory, " for ", bytes,
                   " bytes, which is not a multiple of ", kMemoryAlignment,
                   "; return aligned memory");
    return memory;
  }
};

}  // namespace muonrt
