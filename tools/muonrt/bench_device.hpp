#pragma once

#include <CLI/CLI.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "muonrt/median.hpp"
#include "muonrt/table.hpp"

namespace muonrt::tool {

/// The options that the benchmarks of one device share.
struct DeviceArguments {
  std::string device = "host";
  int index = 0, threads = 1, warmup = 2, iters = 10;
  int reserved_sms = 8;  // as beside a communicator over NCCL
  bool json = false;
};
void add_device_options(CLI::App& command, DeviceArguments& arguments);

/// Where products come from, by name: a device whose Ops::multiply is that product.
struct Provider {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  bool plain = false;  // loops: left out of large products
};
/// The CUDA list is where a new kernel for products adds itself (bench_providers.cpp).
std::vector<Provider> providers(const DeviceArguments& where);
/// Those that this device has, at least one; the others are left out. Throws why there is none.
std::vector<Provider> present_providers(const DeviceArguments& where);

/// A device, a stream, and memory that lives as long.
class Workbench {
 public:
  explicit Workbench(std::unique_ptr<Device> made);
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

  /// Milliseconds of each of `iters` runs on the device's clock, after `warmup` that are not
  /// measured.
  std::vector<double> time(int warmup, int iters, const std::function<void()>& enqueue);
  /// The same of one run.
  double time_once(const std::function<void()>& enqueue);

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  std::vector<Buffer> memory_;
  Buffer clock_;
};

/// Times of runs that take turns, each once in a round, so that clocks and heat are the same for
/// all: [run][round], after `warmup` rounds that are not measured.
std::vector<std::vector<double>> alternate(int warmup, int iters,
                                           const std::vector<std::function<double()>>& runs);

/// Of a JSON object: names and values as JSON.
using Fields = std::vector<std::pair<std::string, std::string>>;
/// Prints what was measured, under a title or as JSON. @return  the exit status.
int finish_bench(const DeviceArguments& arguments, const std::string& title, const Fields& fields,
                 const Table& table, int64_t wrong);

/// 64 random bits; they follow from (seed, index).
uint64_t bench_word(uint64_t seed, int64_t index);
/// In [-1, 1), not zero, of all exponents a bf16 has there; follows from (seed, index).
float bench_value(uint64_t seed, int64_t index);
/// `count` of them, rounded to bf16 or as they are, as bytes.
std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count);
float bench_load(const void* from, DType dtype, int64_t index);

}  // namespace muonrt::tool
