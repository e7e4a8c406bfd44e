#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Adds --warmup and --iters.
/// @param of    a plural noun for what the options count, such as "steps".
/// @param more  text at the end of the help of --warmup.
void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters);

/// The options that the benchmarks of one device share.
struct DeviceArguments {
  std::string device = "host";
  int threads = 1, warmup = 2, iters = 10;
  double deadline = 600;  // seconds
  bool json = false, stream = false;
  // For benchmarks of products:
  std::string dtype = "bf16";
  double steady = 0;  // seconds
  int reserved_sms = 0;
  std::vector<std::string> shapes, providers, tune;  // no `providers`: all
};
constexpr const char* kTuneHelp =
    "pairs=0|1, early=0|1, tiles=large|medium|small|wide, slices=1|2|4, skew=0 to 3, "
    "dense=0|1, counter=0|1, raster=1 to 1024";
void add_device_options(CLI::App& command, DeviceArguments& arguments);
/// Adds the options of benchmarks of products.
void add_product_options(CLI::App& command, DeviceArguments& arguments);
/// Returns the options that the JSON output contains, as pairs of name and JSON text.
std::vector<std::pair<std::string, std::string>> product_fields(const DeviceArguments& arguments);

/// The shape of `count` matrices. The number of rows is the short side.
struct BenchShape {
  int64_t rows = 0, cols = 0, count = 1;
};
/// Reads --shapes. Throws CLI::ValidationError.
std::vector<BenchShape> bench_shapes(const std::vector<std::string>& words);

}  // namespace muonrt::tool
