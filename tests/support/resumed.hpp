#pragma once

#include <cstring>

#include "state/checkpoint.hpp"
#include "support/attempts.hpp"
#include "support/folder.hpp"

/// Functions for runs that are saved and then resumed with a different number of ranks or on a
/// different mesh.
namespace resumed {

using namespace muonrt;

inline void run_steps(world::Rank& rank, int64_t first, int64_t end) {
  StepReport report;
  for (int64_t step = first; step < end; ++step) rank.step(step, report);
}

/// Runs the first `steps` steps of `c` and saves a checkpoint. Returns the parameters after these
/// steps.
inline world::Tensors save(const world::Case& c, int64_t steps, const std::string& folder,
                           const SaveSettings& how = {.with_params = true}) {
  return world::tensors_after(c, [&](world::Rank& rank, Comm&) {
    run_steps(rank, 0, steps);
    Files files;
    save_state(rank.optimizer(), folder, how, files);
  });
}

/// Copies the parameters `from` to the shards of a rank.
inline void give(world::Rank& rank, const world::Case& c, int number, const world::Tensors& from) {
  for (size_t p = 0; p < c.params.size(); ++p) {
    const auto size = static_cast<size_t>(size_of(c.params[p].dtype));
    const auto param = static_cast<int64_t>(p);
    world::for_each_element(rank.layout(param), number, [&](int64_t element, int64_t local) {
      std::memcpy(rank.data(param).data() + static_cast<size_t>(local) * size,
                  from.params[p].data() + static_cast<size_t>(element) * size, size);
    });
  }
}

/// Loads the checkpoint on the ranks of `c`, and runs the steps from `first` to end - 1.
/// @param given  The values of the parameters before the load, or null.
inline world::Outcome load(const world::Case& c, int64_t first, int64_t end,
                           const std::string& folder, const LoadSettings& how = {},
                           const world::Tensors* given = nullptr) {
  world::Outcome out;
  out.tensors = world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
    if (given) give(rank, c, comm.rank(), *given);
    load_state(rank.optimizer(), folder, how);
    run_steps(rank, first, end);
  });
  return out;
}

/// Returns the result of `c` after `c.steps` steps. The first `k` steps run on the ranks and mesh
/// of `c`, and the remaining steps on the ranks and mesh of `elsewhere`.
inline world::Outcome moved(const world::Case& c, const world::Case& elsewhere, int64_t k) {
  const test_support::Folder folder;
  save(c, k, folder.path() + "/state");
  return load(elsewhere, k, c.steps, folder.path() + "/state");
}

}  // namespace resumed
