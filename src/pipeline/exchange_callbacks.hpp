#pragma once

#include <cstdint>

namespace muonrt {

/// The caller's gather and redistribute functions, which replace the built-in exchanges. Every rank
/// of the communicator calls them in the same order, one at a time. If a function returns an error
/// code instead of 0, the step is rejected on all ranks.
///
/// `local` is the rank's shard, or null if the shard is empty. `full` is the whole row-major tensor
/// on the owner, and null on other ranks. Both have the transport dtype. `stream` is the native
/// stream that Device::call passes.
struct ExchangeCallbacks {
  void* state = nullptr;
  int (*gather)(void* state, int64_t param, int32_t owner, const void* local, void* full,
                void* stream) = nullptr;
  int (*redistribute)(void* state, int64_t param, int32_t owner, const void* full, void* local,
                      void* stream) = nullptr;
  explicit operator bool() const { return gather != nullptr; }
};

/// Describes the first call in a step that returned an error. The thread that runs the exchanges
/// writes this struct. Other code reads and clears it between steps.
struct CallbackFailure {
  const char* function = nullptr;  // null if no call failed
  int64_t param = -1;
  int code = 0;
};

/// One call, with its arguments bound.
struct BoundCallback {
  const ExchangeCallbacks* callbacks = nullptr;
  CallbackFailure* failure = nullptr;
  bool gathers = true;
  int64_t param = -1;
  int32_t owner = -1;
  void* local = nullptr;
  void* full = nullptr;

  /// Calls the function with its arguments. Device::call receives this function, with a
  /// BoundCallback as `argument`.
  static int run(void* argument, void* stream) {
    const BoundCallback& c = *static_cast<const BoundCallback*>(argument);
    const ExchangeCallbacks& f = *c.callbacks;
    const int code = c.gathers ? f.gather(f.state, c.param, c.owner, c.local, c.full, stream)
                               : f.redistribute(f.state, c.param, c.owner, c.full, c.local, stream);
    if (code != 0 && !c.failure->function)
      *c.failure = {c.gathers ? "gather" : "redistribute", c.param, code};
    return code;
  }
};

}  // namespace muonrt
