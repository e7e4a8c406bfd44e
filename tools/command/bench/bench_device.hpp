#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "command/bench/bench_report.hpp"

namespace muonrt::tool {

/// Where products come from, by name: a device whose Ops::multiply is that product.
struct Provider {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  bool plain = false;  // loops: left out of large products
  bool best = false;   // the vendor's at their best: in full, symmetric or not, the depth in parts
};
/// Those asked for, of all that there are. The CUDA list is where a new kernel for products adds
/// itself (bench_providers.cpp).
/// Throws CLI::ValidationError for a name that there is not.
/// @param best  with those that are there to be measured against alone.
std::vector<Provider> providers(const DeviceArguments& where, bool best = false);
/// Those that this device has, at least one; the report learns why the others are left out.
std::vector<Provider> present_providers(BenchReport& report, bool best = false);

/// A device, a stream, and memory that lives as long.
class Workbench {
 public:
  explicit Workbench(std::unique_ptr<Device> made);
  /// Where the provider's device does not answer the report gives up.
  Workbench(const Provider& provider, BenchReport& report);
  Device& device() { return *device_; }
  Ops& ops() { return device_->ops(); }
  Stream& stream() { return *stream_; }
  void finish();

  void* take(int64_t bytes);
  void put(void* to, const void* from, int64_t bytes);
  void get(void* to, const void* from, int64_t bytes);
  /// Calls visit(bytes in host memory, their offset, how many) for one piece of `from` after the
  /// other.
  void look(const void* from, int64_t bytes,
            const std::function<void(const void* piece, int64_t offset, int64_t size)>& visit);
  template <class T>
  T* put(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    void* const at = take(bytes);
    put(at, static_cast<const void*>(values.data()), bytes);
    return static_cast<T*>(at);
  }
  /// `count` values, made on many threads.
  void put_values(void* to, DType dtype, int64_t count,
                  const std::function<float(int64_t index)>& value);
  /// Milliseconds of one run, on the device's clock.
  double time_once(const std::function<void()>& enqueue);
  /// Of memory's bytes, by the device.
  uint64_t hash(const void* memory, int64_t bytes);

 private:
  /// Calls `move(offset, size)` for pieces that the staging memory holds.
  void by_pieces(int64_t bytes, const std::function<void(int64_t offset, int64_t size)>& move);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  std::string name_;
  BenchReport* report_ = nullptr;
  std::vector<Buffer> memory_;
  Buffer staging_;
};

}  // namespace muonrt::tool
