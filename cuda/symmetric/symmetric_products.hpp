#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda_device.hpp"
#include "cuda/symmetric/kernels.hpp"
#include "cuda/symmetric/small_jobs.hpp"

namespace muonrt::cuda {

/// Symmetric products with the kernels of this folder. The kernel depends on the device's kind and
/// `provider`, and the order of an element's sum on the shape. Neither depends on the batch, other
/// products of the launch, the number of SMs, alignment or free memory.
class SymmetricProducts {
 public:
  /// @param device  allocates the memory of job lists and sums; must outlive this object.
  /// @param provider  kSm80 or kSm90.
  /// @param sms  number of SMs that a persistent grid may use (kSm90).
  /// @param tuning  for kSm90.
  /// @param partials  maximum number of partial sums of cells that one launch leaves, 64 KiB each
  ///     (kSm80).
  SymmetricProducts(Device& device, SymmetricProvider provider, int sms,
                    const Sm90Tuning& tuning = {}, int64_t partials = 512);

  /// Name, for Device::describe.
  std::string identity() const;
  /// Allocates the memory of sums that this shape needs. A job list is created when its list of
  /// shapes first occurs.
  void reserve(int64_t n, int64_t k);
  /// Computes products of any shapes and one dtype, in as few launches as the kernels' arguments
  /// allow. Every product must satisfy `symmetric_takes` and have k > 0.
  void multiply(std::span<const Product> products, cudaStream_t stream);

 private:
  struct DeviceList {
    Buffer jobs;
    int64_t count = 0;
    Buffer first;  // of each block of a persistent grid
    Tiles tiles = Tiles::kLarge;
    bool pairs = false;  // whether the list has pairs
  };

  /// Number of slices of one matrix's depth in this provider's kernels.
  int slices_in(const Product& p) const;
  DeviceList make_list(std::span<const SymmetricShape> shapes, cudaStream_t stream);
  const DeviceList& list_of(std::span<const Product> products, cudaStream_t stream);
  bool can_share_launch(const Product& a, const Product& b) const;
  void launch_sm80(std::span<const Product> products, cudaStream_t stream);
  void launch_sm90(std::span<const Product> products, cudaStream_t stream);
  void launch_large(std::span<const Product> products, const DeviceList& list, cudaStream_t stream);
  void launch_small(std::span<const Product> products, const DeviceList& list, cudaStream_t stream);

  Device& device_;
  SymmetricProvider provider_;
  int blocks_;  // of a persistent grid
  Sm90Tuning tuning_;
  int64_t most_partials_;
  Buffer partials_;
  std::map<std::vector<SymmetricShape>, DeviceList> lists_;
};

}  // namespace muonrt::cuda
