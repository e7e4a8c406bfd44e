#pragma once

namespace muonrt::cuda {

/// Whether the calling thread's current context is the device's primary one, which the runtime and
/// NCCL use, or there is none. False for a context that the program has created. Errors: DEVICE,
/// NOT_SUPPORTED.
bool in_primary_context(int device);
/// Pushes a device's primary context, so that it is current for the calling thread until
/// pop_context. Errors: DEVICE, NOT_SUPPORTED.
void push_context(int device);
/// Makes the previous context current again, which may be none.
void pop_context() noexcept;

}  // namespace muonrt::cuda
