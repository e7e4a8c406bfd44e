#pragma once

#include <functional>
#include <string>

#include "muonrt/muonrt.hpp"
#include "opt_json/optimizer_options.hpp"

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Options for whole steps: the device, how GPUs communicate, and the timeout of the ranks.
struct RunDevice {
  std::string device = "host", gpu_comm = "staged";
  double timeout = 600;  // seconds
  bool portable_gemm = false;
  // The following options apply only to GPUs; see muonrt_tuning_options_t.
  bool graphs = false;
  std::string symmetric = "default";
  bool cuda() const { return device == "cuda"; }
};
/// Adds --device, --gpu-comm and --timeout.
void add_gpu_comm_options(CLI::App& command, RunDevice& where);
/// Adds --device, --gpu-comm, --timeout, --portable-gemm, --graphs and --symmetric.
void add_run_device_options(CLI::App& command, RunDevice& where);

/// Sets these fields in the options of an optimizer: the device, the GPU of the rank, the
/// implementation of products, and the timeout.
void set_device(OptimizerOptions& options, const RunDevice& where, int rank);

/// Calls `work` with the communicator that optimizers on this device need, and returns the result
/// of `work`. Collective. Throws Error if the device or NCCL is missing.
int on_device(Comm& comm, const RunDevice& where, const std::function<int(Comm&)>& work);

}  // namespace muonrt::tool
