#pragma once

#include <cstdint>
#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Symmetric products that run on a GPU during an exchange. As in a step, they leave SMs to the
/// communicator.
class ProductLoad {
 public:
  ProductLoad(int gpu, const BenchShape& shape, int reserved_sms);

  /// Sets how long the following runs take: about `ms` without an exchange, and at least one
  /// product.
  void set_duration(double ms);
  /// Returns how long the products take without an exchange, in milliseconds.
  double alone_ms() const { return static_cast<double>(repeats_) * product_ms_; }
  /// Enqueues the products. Returns when the GPU has begun to run them, or after 10 ms.
  void start();
  /// Waits for the products. Returns their time on the GPU's clock, in milliseconds.
  double finish();

 private:
  Workbench bench_;
  Product product_;
  Buffer clock_;
  int64_t repeats_ = 1;
  double product_ms_ = 0;
};

}  // namespace muonrt::tool
