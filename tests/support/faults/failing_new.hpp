#pragma once

#include <cstdlib>
#include <new>

#include "support/faults/allocation_failure.hpp"

// Replaces operator new. The replacement fails for the allocations that allocation_failure.hpp
// selects. Include this file in exactly one file of a program. Do not include it in builds with a
// sanitizer, because sanitizers define their own operators.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = support::refusal.refuses() ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif
