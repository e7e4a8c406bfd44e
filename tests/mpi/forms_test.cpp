#include <catch2/catch.hpp>

#include "comm/host_comm.hpp"
#include "mpi/harness.hpp"
#include "mpi/session.hpp"
#include "support/covering.hpp"
#include "support/form_cases.hpp"

// "Same bits" under mpirun for every form of a layout: each rank compares what it holds with the
// run of one rank.

using namespace muonrt;
using namespace mpi_test;

namespace {

std::string run_and_compare(const world::Case& c, const world::Tensors& reference,
                            const std::string& name) {
  HostComm comm(connect(60'000));
  world::Rank rank(c, comm);
  StepReport report;
  for (int step = 0; step < c.steps; ++step) {
    rank.step(step, report);
    if (report.orthogonalized != report.planned) return name + ": orthogonalized is not as planned";
  }
  return rank.tensors(reference) == reference ? ""
                                              : cat(name, ": rank ", comm.rank(), " differs; ");
}

std::string run_forms() {
  const world::Tensors reference = forms::reference().tensors;
  std::vector<forms::Form> here;
  for (const forms::Form& form : forms::all()) {
    int64_t ranks = 1;
    for (const int64_t n : form.mesh) ranks *= n;
    if (ranks == size()) here.push_back(form);
  }
  if (here.empty()) here.push_back({"alone", {size()}, forms::whole_on_all});
  std::string problems;
  for (const auto& row : covering::pairwise({static_cast<int>(here.size()), 3, 2, 2, 3, 2}, 13)) {
    const forms::Form& form = here[static_cast<size_t>(row[0])];
    const auto commit = row[2] ? CommitMode::kEager : CommitMode::kAtomic;
    world::Case c = forms::make(form, 1 + row[1], commit, row[3] ? 512 : 1 << 20);
    c.settings.replicas = static_cast<Replicas>(row[4]);
    c.settings.max_peers = row[5];
    if (row[5] == 1) forms::give_owners(c, form);
    problems += run_and_compare(c, reference, form.name);
  }
  return problems;
}

/// Parameters whose gradients lie elsewhere, over one mesh dimension of all ranks.
world::Case split(const std::vector<Placement>& params, const std::vector<Placement>& grads,
                  int addends) {
  world::Case c;
  c.world = params.empty() ? 1 : size();
  c.mesh = {c.world};
  c.settings.chunk_bytes = 2048;
  c.settings.poison = true;
  c.steps = 3;
  for (const auto& [name, role] : {std::pair{"w", Role::kMuon}, {"b", Role::kAdamW}}) {
    world::Param p;
    p.name = name;
    p.shape = {29, 17};
    p.role = role;
    p.addends = addends;
    p.placements = params;
    p.grad_placements = grads;
    c.params.push_back(p);
  }
  return c;
}

}  // namespace

TEST_CASE("same bits: every form of a layout under mpirun equals one rank", "[mpi][bits]") {
  std::string problems;
  const std::string thrown = attempt([&] { problems = run_forms(); });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("same bits: gradients that lie elsewhere, under mpirun", "[mpi][bits]") {
  const Placement rows{PlacementKind::kShard, 0, 1}, columns{PlacementKind::kShard, 1, 1},
      whole{PlacementKind::kReplicate, 0, 1}, partial{PlacementKind::kPartial, 0, 1};
  std::string problems;
  const std::string thrown = attempt([&] {
    const auto reduced = world::run(split({}, {}, 0)).tensors;
    const auto summed = world::run(split({}, {}, size())).tensors;
    problems += run_and_compare(split({whole}, {rows}, 0), reduced, "ZeRO-1");
    problems += run_and_compare(split({rows}, {whole}, 0), reduced, "whole gradients");
    problems += run_and_compare(split({rows}, {columns}, 0), reduced, "rows and columns");
    // One addend in all is the gradient itself.
    if (size() > 1)
      problems += run_and_compare(split({rows}, {partial}, size()), summed, "not reduced");
  });
  REQUIRE(on_all(problems + thrown) == "");
}
