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

/// Symmetric products by the kernels of this folder. The kernel follows from the device's kind and
/// `provider`, how an element is summed from the shape: not from the batch, what else is in the
/// launch, the number of SMs, alignment or free memory.
class SymmetricProducts {
 public:
  /// @param device      lends the memory of job lists and sums; outlives this.
  /// @param provider    kSm80 or kSm90.
  /// @param sms         that a persistent grid may fill (kSm90).
  /// @param tuning      of kSm90.
  /// @param partials    sums of slices that one launch leaves at most, 64 KiB each (kSm80).
  SymmetricProducts(Device& device, SymmetricProvider provider, int sms,
                    const Sm90Tuning& tuning = {}, int64_t partials = 512);

  /// Name, for Device::describe.
  std::string identity() const;
  /// Takes the memory of sums that this shape needs; job lists are made where a list of shapes is
  /// met for the first time.
  void reserve(int64_t n, int64_t k);
  /// Products of any shapes, one dtype, in as few launches as kernels' arguments allow.
  /// Every one `symmetric_takes`, k > 0.
  void multiply(std::span<const Product> products, cudaStream_t stream);

 private:
  struct DeviceList {
    Buffer jobs;
    int64_t count = 0;
    Buffer first;  // of a persistent grid's blocks
    Tiles tiles = Tiles::kLarge;
    bool pairs = false;  // whether it has any
  };

  /// Of one matrix's depth, by this provider's kernels.
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
