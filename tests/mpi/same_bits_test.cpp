#include <mpi.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>

#include "comm/host_comm.hpp"
#include "mpi/harness.hpp"
#include "state/background_save.hpp"
#include "support/bits_cases.hpp"
#include "support/covering.hpp"
#include "support/resumed.hpp"

using namespace muonrt;
using namespace mpi_test;

namespace {

constexpr int kSteps = 5;

// Runs the steps of a case and compares the shards of this rank with the reference. Returns the
// problem, or "".
std::string run_and_compare(const world::Case& c, const world::Tensors& reference) {
  HostComm comm(connect(60'000));
  world::Rank rank(c, comm);
  StepReport report;
  for (int step = 0; step < c.steps; ++step) {
    rank.step(step, report);
    if (report.orthogonalized != report.planned) return "orthogonalized is not as planned";
  }
  // tensors() writes this rank's shards over the reference, so only bytes of these shards can
  // differ.
  return rank.tensors(reference) == reference
             ? ""
             : cat("rank ", comm.rank(), " differs; ", c.describe());
}

/// Runs one half of a pairwise covering array in f32, or the other half in bf16.
std::string run_meshes(bool half) {
  const auto reference = bits::reference_ops(half, kSteps);
  std::vector<size_t> meshes;
  for (size_t i = 0; i < bits::meshes().size(); ++i) {
    if (bits::meshes()[i].world == size()) meshes.push_back(i);
  }
  std::string problems;
  const auto count = static_cast<int>(meshes.size());
  const auto rows = covering::pairwise({count, bits::kSchemes, 3, 3, 2, 2}, 7);
  for (size_t i = half; i < rows.size(); i += 2) {
    const auto& row = rows[i];
    const bits::Factors f{
        meshes[static_cast<size_t>(row[0])], row[1], 1 + row[2], row[3], row[4], 1 + row[5]};
    world::Case c = bits::make(f, half, kSteps);
    c.async = f.window % 2 == 0;
    problems += run_and_compare(c, reference);
  }
  return problems;
}

}  // namespace

TEST_CASE("same bits: parameters and state under mpirun equal those of one rank", "[mpi][bits]") {
  for (const bool half : {false, true}) {
    std::string problems;
    const std::string thrown = attempt([&] { problems = run_meshes(half); });
    REQUIRE(on_all(problems + thrown) == "");
  }
}

namespace {

/// A folder that rank 0 creates and whose path all ranks know. It is deleted when all ranks have
/// destroyed the object.
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

world::Case cut_along(int dim, int ranks) {
  world::Case c = world::on_mesh({ranks});
  c.params = {world::matrix("w", {13, 9}, {{PlacementKind::kShard, dim, 1}}),
              world::matrix("b", {11}, {})};
  c.params[1].role = Role::kAdamW;
  c.steps = 4;
  c.inactive_params = {{}, {1}, {0}, {}};
  return c;
}

}  // namespace

TEST_CASE("same bits: a checkpoint under mpirun continues in another layout", "[mpi][state]") {
  const auto expected = world::run(cut_along(0, 1)).tensors;
  const SharedFolder folder;
  const auto on_ranks = [](int dim, const std::function<void(world::Rank&)>& function) {
    return on_all(attempt([&] {
      const world::Case c = cut_along(dim, size());
      HostComm comm(connect(60'000));
      world::Rank mine(c, comm);
      function(mine);
    }));
  };
  REQUIRE(on_ranks(0, [&](world::Rank& mine) {
            resumed::run_steps(mine, 0, 2);
            BackgroundSave saving;
            saving.reserve(mine.optimizer(), true);
            saving.begin(mine.optimizer(), folder.path(), {.with_params = true});
            resumed::run_steps(mine, 2, 3);
            saving.wait();
          }) == "");
  REQUIRE(on_ranks(1, [&](world::Rank& mine) {
            load_state(mine.optimizer(), folder.path(), {});
            resumed::run_steps(mine, 2, 4);
            if (mine.tensors(expected) != expected)
              throw Error(Status::kInternal, "the bits differ");
          }) == "");
}
