#pragma once

#include <atomic>

#include "backend/scalars.hpp"

namespace muonrt::host {

// Several threads, possibly of two streams, record findings at the same time.

inline void note_nonfinite(Findings& findings) {
  std::atomic_ref(findings.nonfinite).store(1, std::memory_order_relaxed);
}

inline void lower(int64_t& first_param, int64_t param) {
  std::atomic_ref first(first_param);
  int64_t seen = first.load(std::memory_order_relaxed);
  while ((seen < 0 || param < seen) && !first.compare_exchange_weak(seen, param)) {
  }
}

/// @param in_f32  true if the value was non-finite even in f32, before it was converted to the
///     message's dtype.
inline void note_nonfinite(Findings& findings, int64_t param, bool in_f32 = true) {
  note_nonfinite(findings);
  lower(findings.first_param, param);
  if (in_f32) lower(findings.first_in_f32, param);
}

inline void note_stale(Findings& findings, int64_t param) { lower(findings.first_stale, param); }

/// Records that a commit wrote a non-finite value.
/// @param findings  may be null.
inline void note_written(Findings* findings) {
  if (findings) std::atomic_ref(findings->wrote_nonfinite).store(1, std::memory_order_relaxed);
}

inline void note_zero_matrix(Findings& findings) {
  std::atomic_ref(findings.zero_matrices).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace muonrt::host
