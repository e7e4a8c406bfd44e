// Tests that state in GPU memory can be saved, and loaded by other ranks.

#include <catch2/catch.hpp>

#include "backend/cuda_comm.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/worlds.hpp"
#include "state/background_save.hpp"
#include "support/bits_cases.hpp"
#include "support/folder.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr int kSteps = 3, kStop = 2;

std::unique_ptr<Comm> staged(std::unique_ptr<Transport> transport) {
  return make_staged_comm(make_bootstrap(std::move(transport)), 0);
}

world::Case make(size_t mesh, int scheme, MasterKind masters) {
  world::Case c = bits::make({.mesh = mesh, .scheme = scheme}, false, kSteps);
  c.inactive_params = {{}, {3, 9}, {0, 10}};
  for (world::Param& p : c.params) {
    p.dtype = masters == MasterKind::kAuto ? p.dtype : DType::kBF16;
    p.master_kind = masters;
  }
  return c;
}

/// Saves a checkpoint.
/// @param in_background  whether steps continue during the save.
void save(world::Rank& rank, const std::string& folder, bool in_background) {
  const SaveSettings how = {.with_params = true};
  Files files;
  if (!in_background) {
    save_state(rank.optimizer(), folder, how, files);
    return;
  }
  BackgroundSave saving;
  saving.reserve(rank.optimizer(), true);
  saving.begin(rank.optimizer(), folder, how);
  run_steps(rank, kStop, kSteps);
  saving.wait();
}

}  // namespace

TEST_CASE(
    "cuda checkpoint: GPUs that continue from a checkpoint are bitwise identical to those that "
    "never stopped",
    "[cuda][state]") {
  // Two ranks save a checkpoint, and four ranks in a two-dimensional mesh load it.
  for (const MasterKind masters : {MasterKind::kAuto, MasterKind::kOwned, MasterKind::kRemainder}) {
    const bool in_background = masters == MasterKind::kOwned;
    const world::Case from = make(1, 1, masters), to = make(5, 3, masters);
    const auto expected = run_world(to, staged);
    const test_support::Folder folder;
    on_world(from, staged, [&](world::Rank& rank) {
      run_steps(rank, 0, kStop);
      save(rank, folder.path(), in_background);
    });
    const auto found = on_world(to, staged, [&](world::Rank& rank) {
      load_state(rank.optimizer(), folder.path(), {});
      run_steps(rank, kStop, kSteps);
    });
    CHECK((found == expected));
  }
}
