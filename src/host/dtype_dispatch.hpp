#pragma once

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace muonrt::host {

/// Calls body(float{}) or body(bf16{}), according to the dtype. Errors: NOT_SUPPORTED for other
/// dtypes.
template <class Body>
auto with_dtype(DType dtype, Body body) {
  if (dtype == DType::kF32) return body(float{});
  MUONRT_REQUIRE(dtype == DType::kBF16, Status::kNotSupported, "dtype ", name_of(dtype),
                 " is not supported on the host; convert the data to f32 or bf16");
  return body(bf16{});
}

/// Like with_dtype(), but also supports f16, which the iterates of Newton-Schulz may have.
template <class Body>
auto with_iterate(DType dtype, Body body) {
  if (dtype == DType::kF16) return body(f16{});
  return with_dtype(dtype, body);
}

}  // namespace muonrt::host
