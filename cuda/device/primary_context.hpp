#pragma once

namespace muonrt::cuda {

/// Whether the calling thread works in the device's primary context, which the runtime and NCCL
/// use, or in none yet: not in one that the program made itself. Errors: DEVICE, NOT_SUPPORTED.
bool in_primary_context(int device);
/// Makes a device's context the calling thread's current one, above the former, which may be none.
/// It is the one that the runtime uses. Errors: DEVICE, NOT_SUPPORTED.
void push_context(int device);
/// Makes the former one current again.
void pop_context() noexcept;

}  // namespace muonrt::cuda
