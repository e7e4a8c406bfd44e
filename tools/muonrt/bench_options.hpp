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
  int reserved_sms = 8;   // as beside a communicator over NCCL
  double deadline = 600;  // seconds
  bool json = false, stream = false;
  std::vector<std::string> providers;  // none: all
};
/// --warmup and --iters. @param of  what is measured, in the plural: "steps". @param more  behind
/// the first one's help.
void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters);
void add_device_options(CLI::App& command, DeviceArguments& arguments);
void add_providers_option(CLI::App& command, DeviceArguments& arguments);

}  // namespace muonrt::tool
