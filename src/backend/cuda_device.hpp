#pragma once

#include <memory>

#include "backend/allocator.hpp"
#include "backend/device.hpp"
#include "backend/sm90_tuning.hpp"

namespace muonrt {

/// The CUDA backend's door; defined in cuda/, or in no_cuda.cpp where that is not built.

/// Whether this build has the CUDA backend.
bool cuda_is_built() noexcept;

/// GPUs that this process sees; 0 without driver or GPU.
int cuda_device_count() noexcept;

/// Makes GPU `index` the calling thread's current one, where there is such a GPU: a library that
/// puts the thread's first one back (0) would leave a context there.
void use_cuda_device(int index) noexcept;

namespace cuda {
class VendorProducts;
}

/// What computes symmetric products in half precision; all others are the vendor's, or naive.
/// Public values.
enum class SymmetricProvider : int32_t {
  kDefault = 0,  // cuda/README.md says which, and why
  kVendor = 1,   // the dense product and a mirror
  kSm80 = 2,     // muonrt's own, mma.sync: compute capability 8.0 and later
  kSm90 = 3,     // muonrt's own, wgmma and bulk copies: compute capability 9.0 alone
};

constexpr const char* name_of(SymmetricProvider provider) {
  switch (provider) {
    case SymmetricProvider::kDefault:
      return "default";
    case SymmetricProvider::kVendor:
      return "vendor";
    case SymmetricProvider::kSm80:
      return "own sm_80";
    case SymmetricProvider::kSm90:
      return "own sm_90a";
  }
  return "unknown";
}

/// How a rank's GPU works; `symmetric`, the two kinds of products and `sm90.slices` alone change
/// bits.
struct CudaSettings {
  bool naive_products = false;  // plain loops in place of the vendor's products: slow
  /// For benchmarks alone: makes what is used in place of the vendor's products.
  std::unique_ptr<cuda::VendorProducts> (*make_products)(Device& device, int index) = nullptr;
  /// With naive products kDefault and kVendor are naive too.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  /// Newton-Schulz is captured at its second run and replayed from then on; not the default, since
  /// it saves the host time and the step none (cuda/MEASUREMENTS.md).
  bool graphs = false;
  /// SMs that persistent grids (kSm90) leave to a communicator's blocks, which would else wait for
  /// the grid's end. At least two stay with the products.
  int reserved_sms = 0;
  Sm90Tuning sm90 = {};      // of kSm90
  Allocator allocator = {};  // no functions: cudaMalloc
};

/// Device `index` as a rank's device.
/// Errors: NOT_SUPPORTED in a build without CUDA and where there is no GPU at all or no library for
/// products, and for symmetric products that the GPU cannot run; DEVICE if there is no GPU of that
/// index or it is too old.
std::unique_ptr<Device> make_cuda_device(int index, const CudaSettings& settings = {});

}  // namespace muonrt
