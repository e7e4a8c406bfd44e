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

/// Symmetric products, and with Sm90Tuning::dense also dense products, with the kernels of this
/// folder. The order in which an element is summed depends on the shape, but not on the batch, on
/// other products of the launch, on the number of SMs, on alignment or on free memory.
class SymmetricProducts {
 public:
  /// @param device  allocates the memory of job lists and sums; must outlive this object.
  /// @param sms  number of SMs that a persistent grid may use.
  /// @param leaves_sms  whether the GPU has more SMs, which the grid leaves to a communicator.
  SymmetricProducts(Device& device, int sms, const Sm90Tuning& tuning = {},
                    bool leaves_sms = false);

  /// Returns the name for Device::describe.
  std::string identity() const;
  /// Returns whether this object computes the product. Depends only on the form and the dtypes.
  bool takes(const Product& p) const;
  /// Computes products of any shapes and one dtype in as few launches as the kernels' arguments
  /// allow. Every product must satisfy `takes` and have k > 0. A job list is created when its list
  /// of shapes first occurs.
  void multiply(std::span<const Product> products, cudaStream_t stream);

 private:
  struct DeviceList {
    Buffer jobs;
    int64_t count = 0;
    Buffer first;  // first job of each block of a persistent grid
    Tiles tiles = Tiles::kLarge;
    bool pairs = false;  // whether the list has pairs
    Buffer taken;        // Sm90Arguments::taken, only if jobs are counted
  };

  /// Returns the number of slices of one matrix's depth.
  int slices_in(const Product& p) const;
  DeviceList make_list(std::span<const SymmetricShape> shapes, cudaStream_t stream);
  const DeviceList& list_of(std::span<const Product> products, cudaStream_t stream);
  bool can_share_launch(const Product& a, const Product& b) const;
  void launch(std::span<const Product> products, cudaStream_t stream);
  void launch_large(std::span<const Product> products, const DeviceList& list, cudaStream_t stream);
  void launch_small(std::span<const Product> products, const DeviceList& list, cudaStream_t stream);

  Device& device_;
  int blocks_;  // number of blocks of a persistent grid
  Sm90Tuning tuning_;
  bool leaves_sms_;
  std::map<std::vector<SymmetricShape>, DeviceList> lists_;
};

}  // namespace muonrt::cuda
