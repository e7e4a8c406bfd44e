#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda_device.hpp"
#include "cuda/symmetric/kernels.hpp"

namespace muonrt::cuda {

/// Symmetric products by the kernels of this folder. The kernel follows from the device's kind and
/// `provider`, how an element is summed from the shape: not from the batch, what else is in the
/// launch, the number of SMs, alignment or free memory.
class SymmetricProducts {
 public:
  /// @param device      lends the memory of job lists and sums; outlives this.
  /// @param provider    kSm80 or kSm90.
  /// @param partials    sums of slices that one launch leaves at most, 64 KiB each.
  SymmetricProducts(Device& device, SymmetricProvider provider, int64_t partials = 512);

  /// Name, for Device::describe.
  std::string identity() const;
  /// Takes the memory of sums that this shape needs; job lists are made where a list of shapes is
  /// met for the first time.
  void reserve(int64_t n, int64_t k);
  /// Products of any shapes, one dtype, in as few launches as kernels' arguments allow.
  /// Every one `symmetric_takes`, k > 0.
  void multiply(std::span<const Product> products, cudaStream_t stream);

 private:
  /// Shapes and the number of persistent blocks (0: a block for each job).
  using ListKey = std::pair<std::vector<SymmetricShape>, int>;
  struct DeviceList {
    Buffer memory;
    int64_t jobs = 0;
  };

  const DeviceList& list_of(std::span<const Product> products, cudaStream_t stream);
  void launch_group(std::span<const Product> products, cudaStream_t stream);

  Device& device_;
  SymmetricProvider provider_;
  int64_t most_partials_;
  Buffer partials_;
  std::map<ListKey, DeviceList> lists_;
};

}  // namespace muonrt::cuda
