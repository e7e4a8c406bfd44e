#include <catch2/catch.hpp>

#include "support/caller_functions.hpp"
#include "support/covering.hpp"
#include "support/numerics/form_cases.hpp"

// Tests that results for every kind of layout (form_cases.hpp) are bitwise identical to those of
// one rank that holds everything.

using namespace muonrt;
using forms::kMatrices;
using forms::make;
using forms::rows;
using Names = std::vector<std::string>;
using Sizes = std::vector<int64_t>;

TEST_CASE("same bits: every form on any mesh, with any owners and with exchange callbacks",
          "[bits][functions]") {
  enum Owners { kPlanned, kGiven, kByCallback };
  const auto reference = forms::reference_ops();
  CHECK(reference.reports[0].planned == kMatrices);
  CHECK(reference.reports[0].orthogonalized == kMatrices);
  const auto all = forms::all();
  for (const auto& row : covering::pairwise({static_cast<int>(all.size()), 4, 2, 2, 4, 3, 2}, 3)) {
    const forms::Form& form = all[static_cast<size_t>(row[0])];
    const bool by_callback = row[5] == kByCallback;
    // Exchange callbacks require atomic commits and one owner for all replicas.
    const auto commit = row[2] && !by_callback ? CommitMode::kEager : CommitMode::kAtomic;
    world::Case c = make(form, 1 + row[1], commit, row[3] ? 512 : 1 << 20);
    c.settings.replica_mode = by_callback ? ReplicaMode::kOnce : static_cast<ReplicaMode>(row[4]);
    if (row[5] == kGiven) forms::give_owners(c, form);
    world::Board board(c);
    c.adjust = [&](OptimizerSettings& settings, int rank) {
      settings.serial = row[6] == 1;
      if (by_callback) board.serve(settings, rank);
    };
    INFO(form.name << ", window " << 1 + row[1] << ", commit " << row[2] << ", replicas " << row[4]
                   << ", owners " << row[5] << ", serial " << row[6]);
    const world::Outcome outcome = world::run(c);
    CHECK(outcome.tensors == reference.tensors);
    for (const StepReport& r : outcome.reports) {
      if (c.settings.replica_mode == ReplicaMode::kOnce) CHECK(r.planned == kMatrices);
      CHECK(r.orthogonalized == r.planned);
      if (by_callback) CHECK(r.bytes_sent == 0);
    }
    // Each rank calls gather and redistribute once for each parameter in each step.
    CHECK(board.calls() == (by_callback ? 2 * forms::kMuon * c.world * c.steps : 0));
  }
}

TEST_CASE("same bits: overlapping groups of ranks never deadlock", "[bits]") {
  // Matrices are sharded over ranks {0, 1} and {0, 2} in turn. Each chunk contains one matrix, and
  // rank 0 owns all matrices. If each rank applied the window only to its own chunks, there would
  // be a deadlock: rank 1 would wait in a gather for rank 0, while rank 0 would wait for rank 2.
  const auto make_groups = [](int ranks, int window) {
    world::Case c = world::on_mesh({ranks});
    c.settings.window = window;
    c.settings.chunk_bytes = 1;
    c.settings.timeout_ms = 5000;
    c.steps = 2;
    for (int i = 0; i < 8; ++i) {
      world::Param p = world::matrix(cat("p", i), {4, 4}, {});
      p.owner = 0;
      p.make_layout = [i, ranks](auto mesh, auto shape) {
        if (ranks == 1) return forms::whole_on_all(mesh, shape);
        const std::vector<int32_t> group = {0, 1 + i % 2};
        const Sizes two = {2};
        return Layout::from_cuts(std::make_shared<const Mesh>(two, Names{}, group), shape,
                                 {Cut{{0}, 0}});
      };
      c.params.push_back(std::move(p));
    }
    return c;
  };
  const auto expected = world::run(make_groups(1, 1)).tensors;
  for (const int window : {1, 2, 3, 8}) {
    INFO("window " << window);
    CHECK(world::run(make_groups(3, window)).tensors == expected);
  }
}

TEST_CASE("parts: each part gives the same result as a separate parameter", "[unit][optimizer]") {
  // Compares gate_up, whose halves are parts, with two separate parameters.
  world::Case fused, apart;
  for (world::Case* c : {&fused, &apart}) c->steps = 1;
  world::Param p;
  p.name = "gate_up";
  p.shape = {8, 6};
  p.parts = {{"gate", rows({{0, 4}}), whole(6), 1.0}, {"up", rows({{4, 8}}), whole(6), 1.0}};
  fused.params = {p};
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank together(fused, comm);
    world::Param half;
    half.name = "gate";
    half.shape = {4, 6};
    apart.params = {half};
    world::Rank gate(apart, comm);
    StepReport report;
    // The values of the first half are those of a 4 x 6 parameter with the same index.
    together.step(0, report);
    CHECK(report.orthogonalized == 2);
    gate.step(0, report);
    const auto &whole_data = together.data(0), &gate_data = gate.data(0);
    CHECK(std::equal(gate_data.begin(), gate_data.end(), whole_data.begin()));
  });
}
