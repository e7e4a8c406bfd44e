#pragma once

#include <functional>
#include <string>

#include "muonrt/muonrt.hpp"

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Where whole steps run, how ranks on GPUs talk, and how long ranks wait for each other.
struct RunDevice {
  std::string device = "host", link = "staged";
  double timeout = 600;  // seconds
  bool portable = false;
  // Of a GPU, as in muonrt_optimizer_options_t.
  bool graphs = false;
  std::string symmetric = "default";
  bool cuda() const { return device == "cuda"; }
};
/// --device, --link and --timeout alone.
void add_link_options(CLI::App& command, RunDevice& where);
void add_run_device_options(CLI::App& command, RunDevice& where);

/// Takes the device, the rank's GPU, the products and the timeout over into an optimizer's options.
void set_device(muonrt_optimizer_options_t& options, const RunDevice& where, int rank);

/// Calls `work` with the communicator that optimizers on this device need. Collective.
/// Throws Error where there is no such device, or no NCCL.
int on_device(Comm& comm, const RunDevice& where, const std::function<int(Comm&)>& work);

}  // namespace muonrt::tool
