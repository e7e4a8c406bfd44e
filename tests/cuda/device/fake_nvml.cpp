// A library with NVML's functions for the emulated GPU. It reports a clock rate of 1,410 MHz and a
// power of 350 W.

#include <cstring>

#define MUONRT_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
int gpu = 0;
}

MUONRT_EXPORT int nvmlInit_v2() { return 0; }
MUONRT_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &gpu;
  return std::strcmp(bus_id, "0000:0A:00.0") == 0 ? 0 : 6;
}
MUONRT_EXPORT int nvmlDeviceGetClockInfo(void* device, int type, unsigned* mhz) {
  *mhz = 1410;
  return device == &gpu && type == 1 ? 0 : 2;
}
MUONRT_EXPORT int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 350'000;
  return device == &gpu ? 0 : 2;
}
