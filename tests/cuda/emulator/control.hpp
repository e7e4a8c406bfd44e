#pragma once

#include <cstdint>

/// What tests may ask of the emulated GPU beyond the CUDA runtime.
namespace emulator {

/// While `held`, nothing that is enqueued runs, and events that are not complete stay so.
void hold(bool held);
/// Makes every stream look as if it were being captured.
void pretend_capture(bool capturing);
/// The next launch ends with a launch failure, and so does everything after it.
void fail_next_kernel();
void forget_failure();
/// Kernels, copies and fills that have been enqueued and not run.
int64_t pending();
/// Calls so far in which a real runtime waits, allocates or makes an object: none belongs in a
/// step.
int64_t slow_calls();

}  // namespace emulator
