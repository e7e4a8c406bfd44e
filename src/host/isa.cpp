#include "host/isa.hpp"

#include "base/text.hpp"
#if defined(__aarch64__) && defined(__linux__)
#include <sys/prctl.h>
#endif

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
#elif defined(__aarch64__)
  return "arm64";
#else
  return "generic";
#endif
}

std::string isa_identity() {
#if defined(__aarch64__) && defined(PR_SVE_GET_VL)
  const int length = prctl(PR_SVE_GET_VL);
  if (length >= 0) return cat(name_of(best_isa()), " sve", 8 * (length & PR_SVE_VL_LEN_MASK));
#endif
  return name_of(best_isa());
}

}  // namespace muonrt::host
