#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "base/error.hpp"
#include "command/bench/bench_options.hpp"
#include "command/bench/bench_report.hpp"

namespace muonrt::tool {

/// A provider of products. Ops::multiply of its device computes the products.
struct Provider {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  bool portable = false;  // slow, so large products are skipped
  bool best = false;  // the vendor's fastest: computes all of a symmetric product, may split sums
};
/// Returns the providers in --providers, or all. If you add a kernel for products, add a line to
/// this function. Throws CLI::ValidationError if a name is unknown, or if --tune is set without
/// sm90.
/// @param best  whether to also return, for comparison, providers that muonrt itself does not use.
std::vector<Provider> providers(const DeviceArguments& arguments, bool best = false);

/// The report of a benchmark of one device.
struct DeviceReport : BenchReport {
  DeviceReport(const DeviceArguments& a, std::vector<Table::Column> columns)
      : BenchReport({a.json, a.stream, false}, std::move(columns)), arguments(a) {}
  const DeviceArguments& arguments;

  /// Runs `work`, which adds rows to the report. Finishes the report even if `work` throws. Returns
  /// the exit status.
  int run(const std::function<void()>& work);
  /// Finishes the report and exits the process immediately. A normal exit would wait forever,
  /// because it frees memory that a hanging device is still using.
  [[noreturn]] void give_up(const std::string& why);
};

/// Returns the providers that work on this device (at least one). Adds the other providers to the
/// report.
std::vector<Provider> present_providers(DeviceReport& report, bool best = false);

/// Runs `work`, and prepends the provider's name to the message of an error.
template <class Work>
auto on_behalf_of(const std::string& provider, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.status(), provider + ": " + error.message());
  }
}

/// A device, a stream, and memory that stays allocated as long as this object exists.
class Workbench {
 public:
  explicit Workbench(std::unique_ptr<Device> made);
  /// If the provider's device does not respond before the timeout, finishes the report and exits
  /// the process.
  Workbench(const Provider& provider, DeviceReport& report);
  Device& device() { return *device_; }
  Ops& ops() { return device_->ops(); }
  Stream& stream() { return *stream_; }
  void finish();

  void* take(int64_t bytes);
  void put(void* to, const void* from, int64_t bytes);
  void get(void* to, const void* from, int64_t bytes);
  template <class T>
  T* put(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    void* const at = take(bytes);
    put(at, static_cast<const void*>(values.data()), bytes);
    return static_cast<T*>(at);
  }
  /// Computes `count` values on up to 16 threads, and writes them.
  void put_values(void* to, DType dtype, int64_t count,
                  const std::function<float(int64_t index)>& value);
  /// Returns the number of elements of the matrices that are infinite or NaN. If the memory was
  /// previously filled with NaN, this includes tiles that were never stored.
  int64_t not_finite(const MatrixBatch& m);
  /// Returns the time of one run in milliseconds, measured with the device's clock.
  double time_once(const std::function<void()>& enqueue);

 private:
  /// Calls `move(offset, size)` for blocks that fit into the staging memory.
  void by_blocks(int64_t bytes, const std::function<void(int64_t offset, int64_t size)>& move);
  /// Reads `from` block by block, and calls visit(bytes in host memory, offset, number of bytes)
  /// for each block.
  void read(const void* from, int64_t bytes,
            const std::function<void(const void* block, int64_t offset, int64_t size)>& visit);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  std::string name_;
  DeviceReport* report_ = nullptr;
  std::vector<Buffer> memory_;
  Buffer staging_;
};

}  // namespace muonrt::tool
