#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command/plan/plan_input.hpp"

namespace muonrt::tool {

/// The command line of `muonrt plan`.
struct PlanArguments {
  std::string model = "gpt2-124m", config;
  std::vector<std::string> meshes = {"dp=2,fsdp=4"}, experts;
  int64_t stages = 1;
  std::optional<int64_t> stage;  // the stage to describe; default: the stage with the most work
  std::string device;            // empty: the machine's device, or "host"
  std::string machine, trace, timeline;
  std::string machine_text;  // the profile of `machine`, after it has been read
  bool compare = false, explain = false;
  int64_t memory = 0;  // limit for each rank in bytes; 0: no limit
  std::string dtype = "f32", grad_dtype, master = "auto";
  std::optional<int64_t> chunk_bytes;  // default: depends on the device
  std::optional<int64_t> window;
  std::string commit, transport_dtype, replica_mode;  // empty: default
  PlacementWords placements;
  std::optional<int64_t> max_peers;
  int64_t rows = 20;
  bool json = false;
};

/// Returns the optimizer options. The command line overrides `o`, the options in opt.json.
OptimizerOptions options_of(const PlanArguments& a, OptimizerOptions o);
TensorTypes types_of(const PlanArguments& a);

/// Adds all options to the command.
void add_options(CLI::App* command, PlanArguments& a);

}  // namespace muonrt::tool
