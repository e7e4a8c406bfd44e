#include "host/isa.hpp"

namespace muonrt::host {

Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Isa::kAvx2;
#endif
  return Isa::kBaseline;
}

const char* name_of(Isa isa) {
  if (isa == Isa::kAvx512) return "avx512";
  if (isa == Isa::kAvx2) return "avx2";
#if defined(__x86_64__)
  return "x86-64";
#else
  return "generic";
#endif
}

}  // namespace muonrt::host
