#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "opt_json/optimizer_options.hpp"

namespace muonrt::train {

/// Memory on the optimizer's device. The model runs on the host, which copies data to and from this
/// memory.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Allocates `elements` floats, without initializing them. They are freed with this object.
  /// Returns null for 0 elements.
  virtual float* make(int64_t elements) = 0;
  virtual void put(float* to, const std::vector<float>& from) = 0;
  virtual void get(std::vector<float>& to, const float* from) = 0;
};

/// The device that a rank's optimizer runs on. By default, the optimizer runs on the host, and uses
/// the communicator and the shards of the model.
struct Place {
  Comm* comm = nullptr;  // for the optimizer; null: the model's communicator
  /// Creates the device memory of one run. If empty, the optimizer uses host memory.
  std::function<std::unique_ptr<DeviceMemory>()> make_memory;
  std::function<void(tool::OptimizerOptions&)> set_device;
  /// A text that identifies all settings that affect the rounding of the optimizer's products.
  std::string products = "host";
};

}  // namespace muonrt::train
