#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// Memory of an optimizer's device, as a rank sees it from the host, where the model is computed.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Memory for so many floats, holding anything; lives as long as this. Null for none.
  virtual float* make(int64_t elements) = 0;
  virtual void put(float* to, const std::vector<float>& from) = 0;
  virtual void get(std::vector<float>& to, const float* from) = 0;
};

/// Where a rank's optimizer runs. By default on the host, over the model's own communicator and
/// shards.
struct Place {
  Comm* comm = nullptr;  // the optimizer's; null: the model's
  /// Of its device, one for each run; empty: the host's.
  std::function<std::unique_ptr<DeviceMemory>()> make_memory;
  std::function<void(muonrt_optimizer_options_t&)> set_device;
  /// In words: what the last bits of its products depend on.
  std::string products = "host";
};

}  // namespace muonrt::train
