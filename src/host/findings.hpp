#pragma once

#include <atomic>

#include "backend/scalars.hpp"

namespace muonrt::host {

// Findings are written by many threads at once, and possibly from two streams.

inline void note_nonfinite(Findings& findings) {
  std::atomic_ref(findings.nonfinite).store(1, std::memory_order_relaxed);
}

inline void note_nonfinite(Findings& findings, int64_t param) {
  note_nonfinite(findings);
  std::atomic_ref first(findings.first_param);
  int64_t seen = first.load(std::memory_order_relaxed);
  while ((seen < 0 || param < seen) && !first.compare_exchange_weak(seen, param)) {
  }
}

inline void note_zero_matrix(Findings& findings) {
  std::atomic_ref(findings.zero_matrices).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace muonrt::host
