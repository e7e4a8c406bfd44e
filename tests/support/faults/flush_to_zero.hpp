#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/// How this thread computes, beyond what <cfenv> knows. Where a processor is not named here,
/// nothing is flushed.
namespace fp_control {

/// Rounding, flushing and traps; not the flags that arithmetic leaves.
inline uint64_t get() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;
#elif defined(__aarch64__)
  uint64_t bits;
  __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
#else
  return 0;
#endif
}

/// Denormals count as zero, as operands and as results; std::fesetenv takes it back.
inline void flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(get() | uint64_t{1} << 24));
#endif
}

}  // namespace fp_control
