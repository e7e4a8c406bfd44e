#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Adds --warmup and --iters. @param of  what they count, in the plural: "steps". @param more  end
/// of the help of --warmup.
void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters);

/// The options that the benchmarks of one device share.
struct DeviceArguments {
  std::string device = "host";
  int threads = 1, warmup = 2, iters = 10;
  double deadline = 600;  // seconds
  bool json = false, stream = false;
  // Of products:
  std::string dtype = "bf16";
  double steady = 0;  // seconds
  int reserved_sms = 0;
  std::vector<std::string> shapes, providers, tune;  // no providers: all
};
void add_device_options(CLI::App& command, DeviceArguments& arguments);
/// Those of products in addition.
void add_product_options(CLI::App& command, DeviceArguments& arguments);

/// `count` matrices, short side first.
struct BenchShape {
  int64_t rows = 0, cols = 0, count = 1;
};
/// The shapes of --shapes. A model has as many of each as in the model, but no more than 2^28
/// elements hold. Throws CLI::ValidationError.
std::vector<BenchShape> bench_shapes(const std::vector<std::string>& words);

}  // namespace muonrt::tool
