#pragma once

#include <cmath>

#include "backend/ops.hpp"
#include "base/error.hpp"

namespace muonrt {

// Checks of the arguments of ops (ops.hpp). Every backend makes these checks before it enqueues
// work.

/// Errors: INVALID_ARGUMENT if a factor is negative or non-finite; INTERNAL if shapes differ.
inline void check_normalize(const MatrixBatch& in, const MatrixBatch& out,
                            const Normalization& how) {
  MUONRT_REQUIRE(how.safety > 0.0f && std::isfinite(how.safety), Status::kInvalidArgument,
                 "normalization: safety is ", how.safety, ", but must be a finite number above 0");
  MUONRT_REQUIRE(how.added >= 0.0f && how.least >= 0.0f, Status::kInvalidArgument,
                 "normalization: eps is ", how.added, " or ", how.least,
                 ", but must be at least 0");
  MUONRT_CHECK_INTERNAL(in.rows == out.rows && in.cols == out.cols && in.count == out.count,
                        "normalize ", in.count, " of ", in.rows, " x ", in.cols, " into ",
                        out.count, " of ", out.rows, " x ", out.cols);
}

/// Errors: INTERNAL if shapes or dtypes do not match.
inline void check_scale_rows(const MatrixBatch& gram, const MatrixBatch& x,
                             const MatrixBatch& factors, const AolRule& rule) {
  const int64_t m = gram.rows;
  MUONRT_CHECK_INTERNAL(gram.cols == m && x.rows == m && factors.cols == m && factors.rows == 1 &&
                            factors.dtype == DType::kF32 && x.dtype == gram.dtype &&
                            x.count == gram.count && factors.count == gram.count &&
                            rule.safety > 0.0f && std::isfinite(rule.safety) && rule.least > 0.0f,
                        "row factors of ", gram.count, " of ", x.rows, " x ", x.cols, ", Gram ",
                        gram.rows, " x ", gram.cols, ", safety ", rule.safety, ", least sum ",
                        rule.least);
}

/// Errors: INTERNAL if a matrix is not square.
inline void check_add_identity(const MatrixBatch& x) {
  MUONRT_CHECK_INTERNAL(x.rows == x.cols, "identity added to ", x.rows, " x ", x.cols);
}

}  // namespace muonrt
