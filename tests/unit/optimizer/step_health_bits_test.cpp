#include <catch2/catch.hpp>

#include "step_health_cases.hpp"

// Health statistics: the same on every mesh.

using namespace muonrt;
using namespace health_cases;

TEST_CASE("health: every number has the same bits on every mesh, and the step's bits stay",
          "[bits][health]") {
  for (const int variant : {0, 1, 3}) {
    bits::Factors alone;
    alone.variant = variant;
    const Told expected = tell(measured(alone));
    REQUIRE(expected.equal);
    CHECK((expected.tensors == bits::reference(false, 2, variant)));
    for (bits::Factors f : {bits::Factors{.mesh = 4, .threads = 2},
                            {.mesh = 6, .scheme = 1, .window = 1, .chunk = 1, .commit = 1},
                            {.mesh = 8, .scheme = 5, .window = 2},
                            {.mesh = 10, .scheme = 3, .chunk = 2},
                            {.mesh = 9, .scheme = 4, .chunk = 1, .commit = 1, .threads = 2}}) {
      f.variant = variant;
      const world::Case c = measured(f);
      INFO(c.describe() << ", variant " << variant);
      const Told told = tell(c);
      CHECK(told.equal);
      REQUIRE(told.reports.size() == expected.reports.size());
      for (size_t s = 0; s < told.reports.size(); ++s)
        CHECK(same(told.reports[s], expected.reports[s]));
      CHECK((told.tensors == expected.tensors));
    }
  }
}

TEST_CASE("health: each replica's own orthogonalization tells what the shared one tells",
          "[bits][health]") {
  bits::Factors f{.mesh = 5, .scheme = 1};
  world::Case once = measured(f), each = measured(f);
  each.settings.replicas = Replicas::kEach;
  const Told a = tell(once), b = tell(each);
  CHECK(b.equal);
  for (size_t s = 0; s < a.reports.size(); ++s) CHECK(same(a.reports[s], b.reports[s]));
}

TEST_CASE("health: experts, parts, addends, and every form of weights have true numbers on meshes",
          "[bits][health]") {
  const Placement r{PlacementKind::kReplicate, 0, 1}, p{PlacementKind::kPartial, 0, 1};
  const auto shard = [](int dim) { return Placement{PlacementKind::kShard, dim, 1}; };
  const auto make = [&](std::vector<int64_t> mesh, const std::vector<Placement>& placements) {
    world::Case c = world::on_mesh(std::move(mesh));
    c.steps = 1;
    c.settings.health_every = 1;
    c.settings.poison = true;
    const auto add = [&](const char* name, std::vector<int64_t> shape, MasterKind master,
                         View view) {
      world::Param param;
      param.name = name;
      param.shape = std::move(shape);
      param.dtype = master == MasterKind::kNone ? DType::kF32 : DType::kBF16;
      param.master_kind = master;
      param.view = view;
      param.placements = placements;
      param.addends = 2;
      c.params.push_back(std::move(param));
    };
    add("plain", {8, 12}, MasterKind::kNone, View::kPlain);
    add("experts", {3, 6, 8}, MasterKind::kNone, View::kStack);
    add("master", {10, 4}, MasterKind::kOwned, View::kPlain);
    add("remainder", {6, 16}, MasterKind::kRemainder, View::kPlain);
    add("stochastic", {8, 8}, MasterKind::kStochastic, View::kPlain);
    PartSettings top, rest;
    top.name = "top";
    top.rows = {{0, 5}};
    top.cols = {{0, 12}};
    top.lr_factor = 2;
    rest = top;
    rest.name = "rest";
    rest.rows = {{5, 8}};
    c.params[0].parts = {top, rest};
    return c;
  };
  const world::Case alone = make({1}, {r});
  const Told expected = tell(alone);
  REQUIRE(expected.reports[0].matrices.size() == 2 + 3 + 3);
  // Weights of forms that the parameter's own bytes tell.
  const auto& experts = expected.tensors.params[1];
  for (size_t e = 0; e < 3; ++e) {
    const MatrixHealth& m = expected.reports[0].matrices[2 + e];
    CHECK(m.param == 1);
    CHECK(m.index == static_cast<int64_t>(e));
    std::vector<double> weights;
    for (const float w : floats({experts.begin() + static_cast<int64_t>(e) * 192,
                                 experts.begin() + static_cast<int64_t>(e + 1) * 192}))
      weights.push_back(static_cast<double>(w));
    CHECK(m.weight_rms == Approx(rms(weights)).epsilon(1e-12));
  }
  for (const world::Case& c : {make({3}, {shard(0)}), make({2, 2}, {r, shard(1)}),
                               make({2, 2}, {p, shard(0)}), make({2, 3}, {p, r})}) {
    INFO(c.describe());
    const Told told = tell(c);
    CHECK(told.equal);
    CHECK(same(told.reports[0], expected.reports[0]));
  }
}
