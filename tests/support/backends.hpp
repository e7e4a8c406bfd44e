#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/ops.hpp"

namespace backends {

/// Ops of one backend and a stream to enqueue them on. Its memory is this process's.
struct Backend {
  std::string name;
  bool slow = false;  // plain loops: keep the matrices small
  muonrt::Ops* ops = nullptr;
  muonrt::Stream* stream = nullptr;
  /// Returns when everything enqueued has run; throws the first error of it.
  std::function<void()> wait;
  std::shared_ptr<void> keeper;
};

/// Every backend there is: the reference, the host with one thread, with two, with plain products.
std::vector<Backend> all();
Backend reference();
Backend host(int threads, bool portable_gemm = false);

}  // namespace backends
