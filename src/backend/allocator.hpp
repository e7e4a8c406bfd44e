#pragma once

#include <cstdint>

#include "backend/device.hpp"

namespace muonrt {

/// The caller's allocator, such as a framework's caching allocator. It has the fields of
/// muonrt_allocator_t. Without functions, the device allocates its own memory.
struct Allocator {
  void* state = nullptr;
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream) = nullptr;
  void (*release)(void* state, void* memory, int64_t bytes, int32_t device, void* stream) = nullptr;

  /// Calls `allocate`. Errors: OUT_OF_MEMORY if it returns NULL; INVALID_ARGUMENT if the memory is
  /// not aligned to kMemoryAlignment (it is released then).
  void* take(int64_t bytes, int32_t device, void* stream) const {
    void* const memory = allocate(state, bytes, device, stream);
    MUONRT_REQUIRE(memory, Status::kOutOfMemory, "the caller's allocator refused ",
                   human_bytes(bytes));
    const auto beside = reinterpret_cast<uintptr_t>(memory) % kMemoryAlignment;
    if (beside != 0) release(state, memory, bytes, device, stream);
    MUONRT_REQUIRE(beside == 0, Status::kInvalidArgument, "options: allocator: allocate gave ",
                   memory, " for ", bytes, " bytes (not a multiple of ", kMemoryAlignment,
                   "); align what it gives");
    return memory;
  }
};

}  // namespace muonrt
