#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/run_device.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The arguments of `muonrt step`.
struct StepArguments {
  std::string params, config, mesh, out, state_in, health;
  std::string missing_grad = "error";  // "error" or "sit-out"
  std::vector<std::string> grads, logits;
  RunDevice where;
  int ranks = 0;
  int64_t most = 0;            // maximum bytes of tensors in a file; 0: files as in `params`
  bool partial_state = false;  // initialize missing state and ignore surplus state
  bool state_out = false, verbose = false, json = false;
};

/// Runs the command on one rank and returns the exit code. Collective.
int run_step(Comm& comm, const StepArguments& arguments);

}  // namespace muonrt::tool
