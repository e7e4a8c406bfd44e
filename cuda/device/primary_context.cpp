#include "cuda/device/primary_context.hpp"

#include <map>
#include <mutex>

#include "cuda/device/driver_api.hpp"

namespace muonrt::cuda {

namespace {

struct Driver {
  decltype(&cuInit) init = driver_function<decltype(&cuInit)>("cuInit");
  decltype(&cuDeviceGet) device_get = driver_function<decltype(&cuDeviceGet)>("cuDeviceGet");
  decltype(&cuDevicePrimaryCtxRetain) retain =
      driver_function<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  decltype(&cuCtxPushCurrent) push =
      driver_function<decltype(&cuCtxPushCurrent)>("cuCtxPushCurrent");
  decltype(&cuCtxGetCurrent) current =
      driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  decltype(&cuCtxPopCurrent) pop = driver_function<decltype(&cuCtxPopCurrent)>("cuCtxPopCurrent");
};

const Driver& driver() {
  static const Driver found;
  return found;
}

void check_driver(CUresult result, const char* call, int device) {
  MUONRT_REQUIRE(result == CUDA_SUCCESS, Status::kDevice, call, " failed with ",
                 static_cast<int>(result), " for CUDA device ", device);
}

/// Returns the primary context of the device. Like the runtime, retains it until the process ends.
CUcontext context_of(int device) {
  // The mutex is never destroyed, because threads that wait for an abort may still run during
  // `exit`.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<int, CUcontext>;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  CUdevice handle = 0;
  CUcontext context = nullptr;
  check_driver(driver().init(0), "cuInit", device);
  check_driver(driver().device_get(&handle, device), "cuDeviceGet", device);
  check_driver(driver().retain(&context, handle), "cuDevicePrimaryCtxRetain", device);
  return known.emplace(device, context).first->second;
}

}  // namespace

bool in_primary_context(int device) {
  CUcontext current = nullptr;
  const CUresult result = driver().current(&current);
  if (result == CUDA_ERROR_NOT_INITIALIZED) return true;  // no thread has used a GPU yet
  check_driver(result, "cuCtxGetCurrent", device);
  return !current || current == context_of(device);
}

void push_context(int device) {
  check_driver(driver().push(context_of(device)), "cuCtxPushCurrent", device);
}

void pop_context() noexcept {
  CUcontext popped = nullptr;
  driver().pop(&popped);
}

}  // namespace muonrt::cuda
