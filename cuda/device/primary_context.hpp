#pragma once

namespace muonrt::cuda {

/// Returns whether the calling thread has either no current context or the device's primary
/// context, which the runtime and NCCL use. Returns false for a context that the program has
/// created. Errors: DEVICE, NOT_SUPPORTED.
bool in_primary_context(int device);
/// Pushes a device's primary context. It stays current for the calling thread until pop_context is
/// called. Errors: DEVICE, NOT_SUPPORTED.
void push_context(int device);
/// Makes the previous context current again. If there was none, no context is current.
void pop_context() noexcept;

}  // namespace muonrt::cuda
