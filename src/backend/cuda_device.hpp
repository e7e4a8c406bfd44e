#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/allocator.hpp"
#include "backend/device.hpp"
#include "backend/sm90_tuning.hpp"

namespace muonrt {

// The interface of the CUDA backend. It is defined in cuda/, or in no_cuda.cpp if the build has no
// CUDA backend.

/// Returns whether this build has the CUDA backend.
bool cuda_is_built() noexcept;

/// Returns the number of GPUs that this process sees; 0 without a driver or a GPU.
int cuda_device_count() noexcept;

/// The size of a GPU.
struct CudaDeviceSize {
  int64_t memory_bytes = 0;
  int sms = 0;
};
/// Errors: DEVICE if GPU `index` does not exist; NOT_SUPPORTED without a CUDA backend.
CudaDeviceSize cuda_device_size(int index);

/// Describes the CUDA runtime of this build and the installed driver: "runtime 13.0, driver 13.0";
/// "none" without a CUDA backend.
std::string describe_cuda();

/// Describes the cuBLASLt that CUDA devices of this process use: "13.1.0 (libcublasLt.so.13)".
/// Loads it. Errors: NOT_SUPPORTED, with the reason, if there is none.
std::string describe_cublas();

/// Makes GPU `index` the calling thread's current device, if it exists. Otherwise a library that
/// restores the thread's current device would create a context on GPU 0.
void use_cuda_device(int index) noexcept;

namespace cuda {
class VendorProducts;
}

/// What computes symmetric products in half precision. All other products are the vendor's, or
/// naive. The values are public.
enum class SymmetricProvider : int32_t {
  kDefault = 0,  // cuda/products/README.md says which, and why
  kVendor = 1,   // the vendor's products of row panels, and a mirror
  kSm90 = 2,     // muonrt's own, wgmma and bulk copies: compute capability 9.0 only
};

constexpr const char* name_of(SymmetricProvider provider) {
  switch (provider) {
    case SymmetricProvider::kDefault:
      return "default";
    case SymmetricProvider::kVendor:
      return "vendor";
    case SymmetricProvider::kSm90:
      return "own sm_90a";
  }
  return "unknown";
}

/// Settings of a rank's GPU. Only naive_products, make_products, symmetric and sm90.slices change
/// the bits of results.
struct CudaSettings {
  bool naive_products = false;  // portable loops instead of the vendor's products: slow
  /// For benchmarks only: creates what replaces the vendor's products.
  std::unique_ptr<cuda::VendorProducts> (*make_products)(Device& device, int index) = nullptr;
  /// With naive_products, kDefault and kVendor are naive, too.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  /// Captures Newton-Schulz as a graph in its second run and launches the graph from then on. Off
  /// by default, because it saves host time but does not shorten the step (cuda/MEASUREMENTS.md).
  bool graphs = false;
  /// SMs that persistent grids (kSm90) leave free for the communicator's thread blocks, which would
  /// otherwise wait until the grid ends. The products keep at least two SMs.
  int reserved_sms = 0;
  Sm90Tuning sm90 = {};      // for kSm90
  Allocator allocator = {};  // no functions: cudaMalloc
};

/// Creates a device for GPU `index`.
/// Errors: NOT_SUPPORTED if the build has no CUDA backend, the machine has no GPU or no library for
/// products, or the GPU cannot run the symmetric products; DEVICE if GPU `index` does not exist or
/// is too old.
std::unique_ptr<Device> make_cuda_device(int index, const CudaSettings& settings = {});

}  // namespace muonrt
