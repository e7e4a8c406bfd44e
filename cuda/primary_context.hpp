#pragma once

namespace muonrt::cuda {

/// Makes a device's context the calling thread's current one, above the former, which may be none.
/// It is the one that the runtime uses. Errors: DEVICE, NOT_SUPPORTED.
void push_context(int device);
/// Makes the former one current again.
void pop_context() noexcept;

}  // namespace muonrt::cuda
