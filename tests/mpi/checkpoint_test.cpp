#include <mpi.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>

#include "comm/host_comm.hpp"
#include "comm/self_transport.hpp"
#include "mpi/harness.hpp"
#include "state/background_save.hpp"
#include "support/bits_cases.hpp"
#include "support/resumed.hpp"

using namespace muonrt;
using namespace mpi_test;

namespace {

constexpr int kSteps = 4, kStop = 2;

/// A folder of rank 0 that all ranks know; it goes when all are here again.
class SharedFolder {
 public:
  SharedFolder() {
    if (rank() == 0) folder_.emplace();
    char path[256] = {};
    if (folder_) std::strncpy(path, folder_->path().c_str(), sizeof path - 1);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, mpi_test::world());
    path_ = path;
  }
  ~SharedFolder() { barrier(); }
  const std::string& path() const { return path_; }

 private:
  std::optional<test_support::Folder> folder_;
  std::string path_;
};

/// Counts of updates differ between parameters, at the stop and behind it.
world::Case make(size_t mesh, int scheme, bool half) {
  world::Case c = bits::make({.mesh = mesh, .scheme = scheme}, half, kSteps);
  c.without_grad = {{}, {3, 9}, {0, 10}, {}};
  return c;
}

std::unique_ptr<Comm> comm_of(const world::Case& c) {
  return std::make_unique<HostComm>(c.world == 1 ? make_self_transport() : connect(60'000));
}

/// The first steps and a save; of a world of one by rank 0. @param beside  while a step is made.
void save(const world::Case& c, const std::string& folder, bool beside) {
  if (c.world == 1 && rank() != 0) return;
  const auto comm = comm_of(c);
  world::Rank mine(c, *comm);
  resumed::run_steps(mine, 0, kStop);
  const SaveSettings how = {.with_params = true};
  Files files;
  if (!beside) return save_state(mine.optimizer(), folder, how, files);
  BackgroundSave saving;
  saving.reserve(mine.optimizer(), true);
  saving.begin(mine.optimizer(), folder, how);
  resumed::run_steps(mine, kStop, kStop + 1);
  saving.wait();
}

/// A load and the rest of the steps; of a world of one on every rank. @return  what is wrong.
std::string go_on(const world::Case& c, const std::string& folder, const world::Tensors& expected) {
  const auto comm = comm_of(c);
  world::Rank mine(c, *comm);
  load_state(mine.optimizer(), folder, {});
  resumed::run_steps(mine, kStop, kSteps);
  world::Tensors all = expected;
  std::vector<std::vector<bool>> seen;
  mine.add_to(all, seen);
  return all == expected ? "" : cat("differs; ", c.describe());
}

/// Meshes of all ranks, and of one.
std::vector<size_t> meshes() {
  std::vector<size_t> out = {0};
  for (size_t i = 1; i < bits::meshes().size(); ++i)
    if (bits::meshes()[i].world == size()) out.push_back(i);
  return out;
}

}  // namespace

TEST_CASE(
    "checkpoint: under mpirun a world that goes on elsewhere makes the bits of one that never "
    "stopped",
    "[mpi][state]") {
  const auto worlds = meshes();
  for (const bool half : {false, true}) {
    const auto expected = world::run(make(0, 0, half)).tensors;
    for (size_t i = 0; i < worlds.size(); ++i) {
      const SharedFolder folder;
      const size_t to = worlds[(i + 1) % worlds.size()];
      std::string problem;
      const std::string not_saved = attempt(
          [&] { save(make(worlds[i], static_cast<int>(i) + 1, half), folder.path(), i % 2 == 1); });
      REQUIRE(on_all(not_saved) == "");
      const std::string not_loaded =
          attempt([&] { problem = go_on(make(to, 3, half), folder.path(), expected); });
      REQUIRE(on_all(problem + not_loaded) == "");
    }
  }
}
