#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/// Access to this thread's floating-point control register. The register has more settings than
/// <cfenv> covers. On processors other than x86-64 and ARM64, flush_to_zero() has no effect.
namespace fp_control {

/// Returns the settings for rounding, flushing and traps, without the status flags of past
/// operations.
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

/// Treats subnormal operands and results as zero until std::fesetenv() restores the environment.
inline void flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(get() | uint64_t{1} << 24));
#endif
}

}  // namespace fp_control
