#include <catch2/catch.hpp>
#include <cstring>

#include "comm/host_comm.hpp"
#include "mpi/harness.hpp"
#include "support/bits_cases.hpp"
#include "support/covering.hpp"

using namespace muonrt;
using namespace mpi_test;

namespace {

constexpr int kSteps = 5;

// Every rank's view of the whole: what each rank holds, put together over MPI on all ranks.
std::string run_and_compare(const world::Case& c, const world::Tensors& reference) {
  HostComm comm(connect(60'000));
  world::Rank rank(c, comm);
  StepReport report;
  for (int step = 0; step < c.steps; ++step) {
    rank.step(step, report);
    if (report.orthogonalized != report.planned) return "orthogonalized is not as planned";
  }
  // This rank's shards over the reference: any byte that differs is one that this rank holds.
  return rank.tensors(reference) == reference
             ? ""
             : cat("rank ", comm.rank(), " differs; ", c.describe());
}

std::string run_meshes(bool half) {
  const auto reference = bits::reference(half, kSteps);
  std::vector<size_t> meshes;
  for (size_t i = 0; i < bits::meshes().size(); ++i) {
    if (bits::meshes()[i].world == size()) meshes.push_back(i);
  }
  std::string problems;
  const auto count = static_cast<int>(meshes.size());
  for (const auto& row : covering::pairwise({count, bits::kSchemes, 3, 3, 2, 2}, 7)) {
    const bits::Factors f{
        meshes[static_cast<size_t>(row[0])], row[1], 1 + row[2], row[3], row[4], 1 + row[5]};
    problems += run_and_compare(bits::make(f, half, kSteps), reference);
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

TEST_CASE("same bits: partial gradients under mpirun give the bits of one rank with their sum",
          "[mpi][bits]") {
  const auto make = [](int ranks, bool summed_here) {
    world::Case c;
    c.world = ranks;
    c.mesh = {ranks};
    for (int r = 0; r < ranks; ++r) c.rank_array.push_back((r + 1) % ranks);
    c.settings.chunk_bytes = 2048;
    c.settings.poison = true;
    c.steps = kSteps;
    for (const auto& [name, role] : {std::pair{"w", Role::kMuon}, {"b", Role::kAdamW}}) {
      world::Param p;
      p.name = name;
      p.shape = {29, 17};
      p.role = role;
      p.addends = size();
      if (!summed_here) p.placements = {{PlacementKind::kPartial, 0, 1}};
      c.params.push_back(p);
    }
    return c;
  };
  const auto reference = world::run(make(1, true)).tensors;
  std::string problems;
  const std::string thrown =
      attempt([&] { problems = run_and_compare(make(size(), false), reference); });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("skip: a NaN on the last rank skips the step on all", "[mpi][optimizer]") {
  std::string problem;
  const std::string thrown = attempt([&] {
    HostComm comm(connect(60'000));
    world::Case c;
    c.world = size();
    c.mesh = {size()};
    world::Param p;
    p.name = "w";
    p.shape = {int64_t{2} * size(), 5};
    p.placements = {{PlacementKind::kShard, 0, 1}};
    c.params = {p};
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    const auto data = rank.data(0), momentum = rank.state(0, StateKind::kMomentum);
    rank.fill_gradients(1);
    if (comm.rank() == size() - 1) std::memset(rank.grad(0).data(), 0xff, 4);
    if (rank.step_only(1, report) != Status::kSkipped) problem += "not skipped ";
    if (report.nonfinite_rank != size() - 1 || report.nonfinite_param != 0) problem += "not named ";
    if (data != rank.data(0) || momentum != rank.state(0, StateKind::kMomentum))
      problem += "changed ";
    if (rank.step(1, report) != Status::kOk) problem += "next step failed ";
  });
  REQUIRE(on_all(problem + thrown) == "");
}
