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

/// Computes symmetric products with the kernels of this folder, and also dense products if
/// Sm90Tuning::dense is set. The order in which the terms of an element are summed depends on the
/// shape. It does not depend on the batch, other products in the launch, the number of SMs, the
/// alignment or free memory.
class SymmetricProducts {
 public:
  /// @param device  allocates the memory of job lists and sums; must outlive this object.
  /// @param sms  number of SMs that a persistent grid may use.
  /// @param leaves_sms  whether the GPU has more than `sms` SMs; the grid leaves the others to a
  ///     communicator.
  SymmetricProducts(Device& device, int sms, const Sm90Tuning& tuning = {},
                    bool leaves_sms = false);

  /// Returns the name that Device::describe includes.
  std::string identity() const;
  /// Returns whether this object can compute the product. The result depends only on the form of
  /// the product and on the dtypes.
  bool takes(const Product& p) const;
  /// Computes products of any shapes but of the same dtype, in as few launches as the kernels'
  /// arguments allow. `takes` must be true for every product, and k must be positive. A job list is
  /// created when its list of shapes occurs for the first time.
  void multiply(std::span<const Product> products, cudaStream_t stream);

 private:
  struct DeviceList {
    Buffer jobs;
    int64_t count = 0;
    Buffer first;  // first job of each block of a persistent grid
    Tiles tiles = Tiles::kLarge;
    bool pairs = false;  // whether the list contains pairs
    Buffer taken;        // Sm90Arguments::taken; used only if jobs are counted
  };

  /// Returns the number of slices into which the depth of a matrix is divided.
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
