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
  std::vector<std::string> grads, logits;
  RunDevice where;
  int ranks = 0;
  int64_t most = 0;  // bytes of the tensors of a file of `out`; 0: as `params` is cut
  bool state_out = false, verbose = false, json = false;
};

/// One rank's part of it all. Collective. @return  the exit code.
int run_step(Comm& comm, const StepArguments& arguments);

}  // namespace muonrt::tool
