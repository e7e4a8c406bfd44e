#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "support/check_same.hpp"
#include "support/numerics/gradient_cases.hpp"

// Tests gradients that have a different layout than their parameters: replicated parameters with
// sharded gradients (ZeRO), sharded parameters with whole gradients, and any two cuts, with and
// without partial gradients. Results must be bitwise identical to those of one rank.

using namespace muonrt;

namespace {

const Placement kP{PlacementKind::kPartial, 0, 1}, kR{PlacementKind::kReplicate, 0, 1};
Placement shard(int dim) { return {PlacementKind::kShard, dim, 1}; }
Placement strided(int dim, int64_t factor) { return {PlacementKind::kStridedShard, dim, factor}; }

using Forms = gradients::Lay;

std::vector<Forms> forms() {
  return {{"ZeRO-1", {4}, {kR}, {shard(0)}, {}},
          {"ZeRO-1, ranks rotated", {3}, {kR}, {shard(0)}, {2, 0, 1}},
          {"gradients by columns", {3}, {kR}, {shard(-1)}, {}},
          {"whole gradients", {3}, {shard(0)}, {kR}, {}},
          {"rows and columns", {4}, {shard(0)}, {shard(-1)}, {}},
          {"rows and columns, crossed",
           {2, 2},
           {shard(0), shard(-1)},
           {shard(-1), shard(0)},
           {3, 1, 0, 2}},
          {"HSDP, gradients over all", {2, 2}, {kR, shard(0)}, {shard(0), shard(0)}, {}},
          {"strided", {3, 2}, {strided(0, 2), shard(0)}, {shard(0), kR}, {}},
          {"not reduced, over other ranks", {2, 2}, {shard(0), shard(0)}, {kP, shard(-1)}, {}},
          {"not reduced where the parameter is cut", {2}, {shard(0)}, {kP}, {}},
          {"the same, ranks mixed", {2, 2}, {shard(0), kR}, {kP, shard(0)}, {2, 0, 3, 1}},
          {"two partial gradients and replicas",
           {2, 2, 2},
           {kR, shard(0), kR},
           {shard(0), kR, kP},
           {}}};
}

int partial_grads_of(const Forms& f) {
  int out = 1;
  for (size_t d = 0; d < f.grads.size(); ++d) {
    if (f.grads[d].kind == PlacementKind::kPartial) out *= static_cast<int>(f.mesh[d]);
  }
  return out;
}

world::Tensors reference(int partial_grads, bool half) {
  return world::run(gradients::alone(half, partial_grads)).tensors;
}

void check_forms(bool half) {
  std::map<int, world::Tensors> expected;
  int turn = half ? 1 : 0;
  for (const Forms& f : forms()) {
    const int partial_grads = partial_grads_of(f);
    const auto [at, is_new] = expected.try_emplace(partial_grads);
    if (is_new) at->second = reference(partial_grads, half);
    world::Case c = gradients::make(f, half, partial_grads);
    ++turn;
    c.settings.window = 1 + turn % 3;
    c.settings.commit = turn % 2 ? CommitMode::kEager : CommitMode::kAtomic;
    c.settings.chunk_bytes = turn % 3 ? 2048 : 1 << 20;
    c.settings.max_peers = turn % 4 == 0 ? 1 : 0;
    c.settings.health_every = turn % 2;
    c.settings.replica_mode = turn % 5 == 0 ? ReplicaMode::kEach : ReplicaMode::kOnce;
    INFO(f.name << ": " << c.describe());
    world::check_same(c, world::run(c), at->second);
  }
}

}  // namespace

TEST_CASE("gradient layouts: any cut of the gradient gives the results of one rank, f32",
          "[bits][grad_layout]") {
  check_forms(false);
}

TEST_CASE("gradient layouts: any cut gives the results of one rank, bf16 with masters",
          "[bits][grad_layout]") {
  check_forms(true);
}

TEST_CASE("gradient layouts: flat gradients of cut parameters, and the reverse",
          "[bits][grad_layout]") {
  const auto expected = reference(1, false);
  const auto rows = [](std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
    return Layout::from_placements(mesh, shape, {shard(0)}, Reading::kLiteral);
  };
  for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{100}}) {
    const auto flat = [first](std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape) {
      int64_t numel = 1;
      for (const int64_t n : shape) numel *= n;
      const int64_t a = std::min(first, numel), b = std::max(a, numel - 3);
      return Layout::with_flat(mesh, std::move(shape), {}, {0}, {{0, a}, {a, b}, {b, numel}});
    };
    for (const bool param_flat : {false, true}) {
      world::Case c = gradients::make({"flat", {3}, {}, {}, {}}, false, 1);
      for (size_t i = 0; i + 1 < c.params.size(); ++i) {
        c.params[i].make_layout = rows;
        c.params[i].make_grad_layout = flat;
        if (param_flat) std::swap(c.params[i].make_layout, c.params[i].make_grad_layout);
      }
      INFO(c.describe() << " first " << first);
      world::check_same(c, world::run(c), expected);
    }
  }
}

TEST_CASE("gradient layouts: the norm counts every element of the gradients once",
          "[bits][grad_layout]") {
  const auto clipped = [](world::Case c) {
    c.settings.clip_norm = 0.5;
    return c;
  };
  const auto expected = world::run(clipped(gradients::alone(false, 1))).tensors;
  for (const Forms& f : {forms()[0], forms()[3], forms()[5], forms()[6]}) {
    INFO(f.name);
    const world::Case c = clipped(gradients::make(f, false, 1));
    world::check_same(c, world::run(c), expected);
  }
}

TEST_CASE("gradient layouts: health counts non-finite elements on the ranks that hold the gradient",
          "[unit][grad_layout]") {
  for (const ReplicaMode replicas :
       {ReplicaMode::kOnce, ReplicaMode::kEach, ReplicaMode::kEveryRank}) {
    world::Case c = gradients::make(forms()[0], false, 1);
    c.settings.health_every = 1;
    c.settings.replica_mode = replicas;
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.fill_gradients(0);
      // The last rank holds rows 30 to 36 of "tall".
      if (comm.rank() == 3) std::memset(rank.grad(0).data() + 4 * 70, 0xff, 8);
      if (rank.step_only(0, report) != Status::kSkipped) throw std::runtime_error("not skipped");
      if (report.nonfinite_param != 0) throw std::runtime_error("not named");
      for (const MatrixHealth& m : rank.optimizer().health().matrices) {
        if (m.nonfinite != (m.param == 0 ? 2 : 0))
          throw std::runtime_error(cat("param ", m.param, ": ", m.nonfinite, " not finite"));
      }
    });
  }
}

TEST_CASE("gradient layouts: if only partial dims differ, the parameter's layout has them",
          "[unit][grad_layout]") {
  const auto mesh = std::make_shared<const Mesh>(std::vector<int64_t>{2, 3});
  const auto of = [&](std::vector<Placement> placements, std::vector<int64_t> shape = {6, 6}) {
    return Layout::from_placements(mesh, std::move(shape), placements, Reading::kLiteral);
  };
  ParamSettings p;
  p.layout = of({kR, shard(0)});
  take_grad_layout(p, of({kR, shard(0)}));
  CHECK_FALSE(p.grad_layout);
  CHECK(p.layout.partial_dims().empty());
  take_grad_layout(p, of({kP, shard(0)}));
  CHECK_FALSE(p.grad_layout);
  CHECK(p.layout.partial_dims() == std::vector<int>{0});
  CHECK_THROWS_WITH(take_grad_layout(p, of({kR, shard(0)})),
                    Catch::Contains("only in grad_layout"));
  p.layout = of({kR, shard(0)});
  take_grad_layout(p, of({kP, shard(1)}));
  REQUIRE(p.grad_layout);
  CHECK(p.layout.partial_dims().empty());
}

TEST_CASE("gradient layouts: invalid layouts are rejected on every rank", "[unit][grad_layout]") {
  const auto check_rejected = [](const std::function<void(world::Case&)>& change,
                                 const char* words) {
    world::Case c = gradients::make(forms()[0], false, 1);
    change(c);
    CHECK_THROWS_WITH(world::run(c), Catch::Contains(words));
  };
  check_rejected(
      [](world::Case& c) {
        c.params[0].make_grad_layout = [](std::shared_ptr<const Mesh> mesh, std::vector<int64_t>) {
          return Layout::from_placements(mesh, {11, 37}, {shard(0)}, Reading::kLiteral);
        };
      },
      "layout has shape [11, 37]");
  check_rejected(
      [](world::Case& c) {
        c.params[5].dtype = DType::kBF16, c.params[5].master_kind = MasterKind::kStochastic;
      },
      "MUONRT_MASTER_STOCHASTIC");
  check_rejected(
      [](world::Case& c) {
        c.settings.groups = world::default_groups();
        c.settings.groups[0].blocks = {2, 2, 3, 0.5};
      },
      "have another layout");
  check_rejected(
      [](world::Case& c) {
        for (size_t i = 0; i < 9; ++i) c.params[i].grad_placements = {kP};
        for (size_t i = 0; i < 9; ++i) c.params[i].placements = {shard(0)};
        c.settings.clip_norm = 1.0;
      },
      "holds partial sums");
}
