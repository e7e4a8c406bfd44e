#pragma once

#include <cstdint>

namespace muonrt {

/// The caller's own gather and redistribute, in place of the built-in exchanges. Called on every
/// rank of the communicator, in the same order, one at a time; they return 0, or an error code that
/// ends the step everywhere with nothing changed.
/// `local` is the rank's shard as registered, null where it is empty; `full` the whole tensor,
/// row-major, null but on the owner; both in the transport dtype. `stream` as Device::call's
/// native.
struct ExchangeCallbacks {
  void* state = nullptr;
  int (*gather)(void* state, int64_t param, int32_t owner, const void* local, void* full,
                void* stream) = nullptr;
  int (*redistribute)(void* state, int64_t param, int32_t owner, const void* full, void* local,
                      void* stream) = nullptr;
  explicit operator bool() const { return gather != nullptr; }
};

/// The first call of a step that failed. Written by the thread that runs the exchanges, read and
/// cleared between steps.
struct CallbackFailure {
  const char* function = nullptr;  // null: none failed
  int64_t param = -1;
  int code = 0;
};

/// One call, with its arguments bound.
struct BoundCallback {
  const ExchangeCallbacks* functions = nullptr;
  CallbackFailure* failure = nullptr;
  bool gathers = true;
  int64_t param = -1;
  int32_t owner = -1;
  void* local = nullptr;
  void* full = nullptr;

  /// As Device::call takes it; `argument` is a BoundCallback.
  static int run(void* argument, void* stream) {
    const BoundCallback& c = *static_cast<const BoundCallback*>(argument);
    const ExchangeCallbacks& f = *c.functions;
    const int code = c.gathers ? f.gather(f.state, c.param, c.owner, c.local, c.full, stream)
                               : f.redistribute(f.state, c.param, c.owner, c.full, c.local, stream);
    if (code != 0 && !c.failure->function)
      *c.failure = {c.gathers ? "gather" : "redistribute", c.param, code};
    return code;
  }
};

}  // namespace muonrt
