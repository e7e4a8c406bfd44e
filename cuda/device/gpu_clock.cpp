#include <cuda_runtime_api.h>

#include "backend/cuda_device.hpp"
#include "cuda/device/vendor_library.hpp"

namespace muonrt {

namespace {

constexpr int kSuccess = 0, kSmClock = 1;  // values from nvml.h

/// The functions of NVML, a library of the driver. All of them return 0 on success.
struct Nvml {
  int (*init)() = nullptr;
  int (*find)(const char* bus_id, void** device) = nullptr;
  int (*clock)(void* device, int type, unsigned* mhz) = nullptr;
  int (*power)(void* device, unsigned* milliwatts) = nullptr;
  bool works = false;

  Nvml() {
    static constexpr const char* kNames[] = {"libnvidia-ml.so.1"};
    try {
      const auto library = cuda::VendorLibrary::open(kNames, "NVML", "install the driver");
      const char* const remedy = "; install a newer driver";
      library.resolve(init, "nvmlInit_v2", remedy);
      library.resolve(find, "nvmlDeviceGetHandleByPciBusId_v2", remedy);
      library.resolve(clock, "nvmlDeviceGetClockInfo", remedy);
      library.resolve(power, "nvmlDeviceGetPowerUsage", remedy);
      works = init() == kSuccess;
    } catch (const Error&) {  // no clock rates are reported
    }
  }
};

}  // namespace

std::optional<GpuClock> read_gpu_clock(int index) {
  static const Nvml nvml;
  // CUDA_VISIBLE_DEVICES changes the device indices of CUDA, but not those of NVML.
  char bus_id[32] = {};
  void* device = nullptr;
  unsigned mhz = 0, milliwatts = 0;
  if (!nvml.works) return std::nullopt;
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  if (nvml.find(bus_id, &device) != kSuccess || nvml.clock(device, kSmClock, &mhz) != kSuccess ||
      nvml.power(device, &milliwatts) != kSuccess)
    return std::nullopt;
  return GpuClock{static_cast<double>(mhz), milliwatts * 1e-3};
}

}  // namespace muonrt
