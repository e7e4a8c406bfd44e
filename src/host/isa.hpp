#pragma once

// Instruction sets of the elementwise passes, chosen at run time. A pass is one always_inline text
// (`static run`), compiled once for each set; contraction is off in every build, so that all of
// them compute the same bits and the choice is one of speed alone.

#include <cstdint>
#include <string>

#define MUONRT_ALWAYS_INLINE inline __attribute__((always_inline))

namespace muonrt::host {

/// Bytes of a vector that loops are written with by hand: g++ keeps those that are longer than
/// NEON's in memory, not in registers.
#if defined(__aarch64__)
inline constexpr int64_t kVectorBytes = 16;
#else
inline constexpr int64_t kVectorBytes = 32;
#endif

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// The widest set of this machine (and operating system) that the passes are compiled for.
Isa best_isa();

/// "x86-64", "avx2", "avx512"; "arm64" there, which has NEON; "generic" on other machines.
const char* name_of(Isa isa);

/// The best set as ranks compare it: on arm64 with the length of SVE's vectors, after which oneDNN
/// chooses and of which it says nothing.
std::string isa_identity();

#if defined(__x86_64__)
template <class Pass, class... Args>
__attribute__((target("avx2"))) auto run_avx2(Args... args) {
  return Pass::run(args...);
}
template <class Pass, class... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) auto run_avx512(Args... args) {
  return Pass::run(args...);
}
#endif

/// Pass::run(args...), compiled for `isa`.
template <class Pass, class... Args>
auto run_pass(Isa isa, Args... args) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return run_avx512<Pass>(args...);
  if (isa == Isa::kAvx2) return run_avx2<Pass>(args...);
#endif
  (void)isa;
  return Pass::run(args...);
}

}  // namespace muonrt::host
