#pragma once

#include "backend/cuda_device.hpp"
#include "support/machine.hpp"

// The CUDA device under test: a GPU (on_gpu.cpp) or the emulated one (on_emulator.cpp).
namespace cuda_test {

using namespace machines;

/// Creates a device with muonrt's symmetric products. On an emulated device, all other products use
/// naive loops.
/// @param reserved_sms  number of SMs that persistent grids leave free.
/// @param tuning        tuning for kSm90.
std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric,
                                            int reserved_sms = 0,
                                            const muonrt::Sm90Tuning& tuning = {});
using machines::make_device;
bool is_emulated();
/// Reports that a case is skipped on this machine. If no case in a run makes an assertion, the run
/// is reported as skipped.
void leave_out(const char* why);
/// Returns the number of runtime calls so far that wait, allocate memory or create an object. On a
/// GPU, returns 0, because a GPU does not count these calls.
int64_t slow_calls();

}  // namespace cuda_test
