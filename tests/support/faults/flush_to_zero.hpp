#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/// The floating-point control register of this thread, which has more settings than <cfenv>. On
/// other processors than those below, nothing is flushed.
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

/// Makes denormals zero, as operands and as results, until std::fesetenv() restores the
/// environment.
inline void flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(get() | uint64_t{1} << 24));
#endif
}

}  // namespace fp_control
