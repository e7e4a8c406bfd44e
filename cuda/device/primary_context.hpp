#pragma once

namespace muonrt::cuda {

/// Returns whether the calling thread has no current context, or the device's primary one, which
/// the runtime and NCCL use. Returns false for a context that the program has created. Errors:
/// DEVICE, NOT_SUPPORTED.
bool in_primary_context(int device);
/// Pushes a device's primary context, which is then current for the calling thread until
/// pop_context. Errors: DEVICE, NOT_SUPPORTED.
void push_context(int device);
/// Makes the previous context current again. If there was none, no context is current.
void pop_context() noexcept;

}  // namespace muonrt::cuda
