#include <mpi.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>

#include "comm/host_comm.hpp"
#include "mpi/harness.hpp"
#include "state/background_save.hpp"
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

world::Case make(int64_t dim) {
  world::Case c = world::on_mesh({size()});
  c.params = {world::matrix("w", {13, 9}, {{PlacementKind::kShard, static_cast<int>(dim), 1}}),
              world::matrix("b", {11}, {})};
  c.params[1].role = Role::kAdamW;
  c.steps = kSteps;
  c.without_grad = {{}, {1}, {0}, {}};
  return c;
}

}  // namespace

TEST_CASE(
    "checkpoint: under mpirun a world that goes on in another layout makes the bits of one that "
    "never stopped",
    "[mpi][state]") {
  const world::Case rows = make(0), columns = make(1);
  const auto expected = world::run([&] {
                          world::Case alone = rows;
                          alone.mesh = {1};
                          alone.world = 1;
                          return alone;
                        }())
                            .tensors;
  const SharedFolder folder;
  const std::string not_saved = attempt([&] {
    HostComm comm(connect(60'000));
    world::Rank mine(rows, comm);
    resumed::run_steps(mine, 0, kStop);
    BackgroundSave saving;
    saving.reserve(mine.optimizer(), true);
    saving.begin(mine.optimizer(), folder.path(), {.with_params = true});
    resumed::run_steps(mine, kStop, kStop + 1);
    saving.wait();
  });
  REQUIRE(on_all(not_saved) == "");
  std::string differs;
  const std::string not_loaded = attempt([&] {
    HostComm comm(connect(60'000));
    world::Rank mine(columns, comm);
    load_state(mine.optimizer(), folder.path(), {});
    resumed::run_steps(mine, kStop, kSteps);
    if (mine.tensors(expected) != expected) differs = "other bits";
  });
  REQUIRE(on_all(differs + not_loaded) == "");
}
