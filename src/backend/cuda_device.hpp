#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/allocator.hpp"
#include "backend/device.hpp"
#include "backend/sm90_tuning.hpp"

namespace muonrt {

// The interface to the CUDA backend, which is implemented in cuda/. In a build without the CUDA
// backend, no_cuda.cpp defines these functions instead.

/// Returns true if this build has the CUDA backend.
bool cuda_is_built() noexcept;

/// Returns the number of GPUs that are visible to this process, or 0 if there is no driver or no
/// GPU.
int cuda_device_count() noexcept;

/// The size of a GPU.
struct CudaDeviceSize {
  int64_t memory_bytes = 0;
  int sms = 0;
};
/// Errors: DEVICE if GPU `index` does not exist; NOT_SUPPORTED without a CUDA backend.
CudaDeviceSize cuda_device_size(int index);

/// Describes the CUDA runtime of this build and the installed driver, for example "runtime 13.0,
/// driver 13.0". Returns "none" without a CUDA backend.
std::string describe_cuda();

/// Describes the cuBLASLt library that CUDA devices of this process use, for example "13.1.0
/// (libcublasLt.so.13)". Loads the library. Errors: NOT_SUPPORTED, with the reason, if it cannot be
/// loaded.
std::string describe_cublas();

/// The clock of the SMs in MHz, and the power in watts.
struct GpuClock {
  double mhz, watts;
};
/// Reads the current clock and power of GPU `index` from NVML, a library of the driver. Returns
/// nullopt if NVML or the GPU cannot be found. May take a few milliseconds. Threads: any.
std::optional<GpuClock> read_gpu_clock(int index);

/// Makes GPU `index` the calling thread's current device, if the GPU exists. Otherwise a library
/// that restores the thread's current device could create a context on GPU 0.
void use_cuda_device(int index) noexcept;

namespace cuda {
class VendorProducts;
}

/// Selects the implementation of symmetric products in half precision. All other products use the
/// vendor's library, or naive loops. The values are part of the public interface.
enum class SymmetricProvider : int32_t {
  kDefault = 0,  // see cuda/products/README.md
  /// The vendor's library computes row panels of the product, and a kernel mirrors the result.
  kVendor = 1,
  kSm90 = 2,  // muonrt's own kernel with wgmma and bulk copies, only for compute capability 9.0
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

/// The settings of a rank's GPU. Only naive_products, make_products, symmetric, sm90.slices and
/// sm90.dense can change results bitwise.
struct CudaSettings {
  bool naive_products = false;  // slow portable loops instead of the vendor's products
  /// For benchmarks only: creates the object that replaces the vendor's products.
  std::unique_ptr<cuda::VendorProducts> (*make_products)(Device& device, int index) = nullptr;
  /// If naive_products is set, kDefault and kVendor also use naive loops.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  /// If true, captures Newton-Schulz as a graph when it runs for the second time, and launches this
  /// graph in later runs. Off by default, because graphs save host time but do not shorten the step
  /// (cuda/MEASUREMENTS.md).
  bool graphs = false;
  /// The number of SMs that persistent grids (kSm90) leave free for the communicator. The
  /// communicator's thread blocks would otherwise wait until the grid is complete. The products
  /// keep at least two SMs.
  int reserved_sms = 0;
  Sm90Tuning sm90 = {};      // overrides for kSm90
  Allocator allocator = {};  // if it has no functions, cudaMalloc is used
};

/// Creates a device for GPU `index`.
/// Errors: NOT_SUPPORTED if the build has no CUDA backend, the machine has no GPU, the library for
/// products is missing, or the GPU cannot run the symmetric products; DEVICE if GPU `index` does
/// not exist or is too old.
std::unique_ptr<Device> make_cuda_device(int index, const CudaSettings& settings = {});

}  // namespace muonrt
