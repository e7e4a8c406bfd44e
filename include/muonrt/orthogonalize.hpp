/// @file muonrt/orthogonalize.hpp
/// The part of muonrt/muonrt.hpp that wraps muonrt/orthogonalize.h.
#ifndef MUONRT_ORTHOGONALIZE_HPP
#define MUONRT_ORTHOGONALIZE_HPP

#include <cstdint>
#include <memory>

#include "muonrt/error.hpp"
#include "muonrt/orthogonalize.h"

namespace muonrt {
inline namespace v0 {

/// Newton-Schulz without an optimizer; see muonrt/orthogonalize.h. Movable; the destructor calls
/// muonrt_orthogonalizer_destroy().
class Orthogonalizer {
 public:
  /// Creates an orthogonalizer; see muonrt_orthogonalizer_create().
  /// @param group    The settings of Newton-Schulz; NULL for the defaults.
  /// @param options  The device and the number of threads; NULL for the host with one thread.
  explicit Orthogonalizer(const muonrt_group_t* group = nullptr,
                          const muonrt_optimizer_options_t* options = nullptr) {
    handle_.reset(
        detail::value<muonrt_orthogonalizer_t*>(muonrt_orthogonalizer_create, options, group));
  }
  /// Orthogonalizes the matrices of `x`; see muonrt_orthogonalize().
  /// @return False if an element of `x` is not finite; `out` is then unchanged. Always true on
  /// CUDA.
  bool orthogonalize(const muonrt_dltensor_t& out, const muonrt_dltensor_t& x,
                     void* stream = nullptr, int64_t* nonfinite = nullptr) {
    return check(muonrt_orthogonalize(&out, nonfinite, get(), &x, stream)) == MUONRT_OK;
  }
  /// Computes c = alpha a a^T + beta d; see muonrt_symmetric_product().
  void symmetric_product(const muonrt_dltensor_t& c, double alpha, const muonrt_dltensor_t& a,
                         double beta = 0, const muonrt_dltensor_t* d = nullptr,
                         void* stream = nullptr) {
    check(muonrt_symmetric_product(&c, get(), alpha, &a, beta, d, stream));
  }
  /// @return The handle. It still belongs to this object, so do not destroy it.
  muonrt_orthogonalizer_t* get() const noexcept { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(muonrt_orthogonalizer_t* p) const noexcept { muonrt_orthogonalizer_destroy(p); }
  };
  std::unique_ptr<muonrt_orthogonalizer_t, Destroy> handle_;
};

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_ORTHOGONALIZE_HPP
