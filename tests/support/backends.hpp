#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda_device.hpp"
#include "backend/ops.hpp"

namespace backends {

/// The ops of one backend, and a stream on which they run.
struct Backend {
  std::string name;
  bool slow = false;  // uses portable loops, so tests keep the matrices small
  muonrt::Ops* ops = nullptr;
  muonrt::Stream* stream = nullptr;
  /// Waits until all enqueued work has ended, and throws its first error.
  std::function<void()> wait;
  std::shared_ptr<void> keeper;
  /// Allocates memory that both the ops and the test can access, aligned to 256 bytes.
  std::function<std::shared_ptr<void>(int64_t bytes)> memory;
};

/// Returns all backends: the host with one thread, the host with two threads, the host with
/// portable products, and CUDA if there is a GPU.
std::vector<Backend> all();
Backend host(int threads, bool portable_gemm = false);
Backend cuda(bool naive_products = false,
             muonrt::SymmetricProvider symmetric = muonrt::SymmetricProvider::kDefault);

}  // namespace backends
