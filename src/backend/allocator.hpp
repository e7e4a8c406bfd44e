#pragma once

#include <cstdint>

#include "backend/device.hpp"

namespace muonrt {

/// Memory from elsewhere, such as a framework's caching allocator; the C struct muonrt_allocator_t
/// in our own types, without functions where memory is the device's own.
struct Allocator {
  void* state = nullptr;
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream) = nullptr;
  void (*release)(void* state, void* memory, int64_t bytes, int32_t device, void* stream) = nullptr;

  /// What `allocate` gives. Errors: OUT_OF_MEMORY if that is nothing; INVALID_ARGUMENT, and it is
  /// given back, if it is not aligned to kMemoryAlignment.
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
