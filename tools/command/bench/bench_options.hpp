#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// The options that the benchmarks of one device share.
struct DeviceArguments {
  std::string device = "host";
  int index = 0, threads = 1, warmup = 2, iters = 10;
  int reserved_sms = 0;
  double deadline = 600, steady = 0;  // seconds
  bool json = false, stream = false;
  std::string values = "random";
  std::vector<std::string> providers;  // none: all
  std::vector<std::string> tune;       // words of read_tuning
};
/// --warmup and --iters. @param of  what is measured, in the plural: "steps". @param more  behind
/// the first one's help.
void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters);
void add_device_options(CLI::App& command, DeviceArguments& arguments);
/// Those of products beside these: --providers, --steady, --values, --tune.
void add_product_options(CLI::App& command, DeviceArguments& arguments);
/// After the parsing: --tune is for the products of `sm90` on a GPU.
/// Throws CLI::ValidationError if another device or only other providers were asked for.
void check_tuning(const DeviceArguments& arguments);
/// Of a table's title: "random values"; of zeros that they are no measure of speed.
std::string named_values(const DeviceArguments& arguments);

}  // namespace muonrt::tool
