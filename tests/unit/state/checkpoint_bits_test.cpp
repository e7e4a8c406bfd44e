#include <catch2/catch.hpp>
#include <random>

#include "support/bits_cases.hpp"
#include "support/check_same.hpp"
#include "support/numerics/form_cases.hpp"
#include "support/numerics/gradient_cases.hpp"
#include "support/rank_check.hpp"
#include "support/resumed.hpp"
#include "support/sanitized.hpp"

// Tests runs that are saved, loaded on a different mesh and continued. Their results must be
// bitwise identical to those of an uninterrupted run.

using namespace muonrt;

namespace {

constexpr int kSteps = 4, kStop = 2;
constexpr size_t kEach = kSanitized ? 6 : 1;

void check_moved(const world::Case& c, const world::Case& elsewhere,
                 const world::Tensors& expected) {
  INFO(c.describe() << "\n-> " << elsewhere.describe());
  world::check_same(elsewhere, resumed::moved(c, elsewhere, kStop), expected);
}

/// Returns a case in which the update counts of parameters differ, both before and after the save.
world::Case make(const bits::Factors& f, bool half) {
  world::Case c = bits::make(f, half, kSteps);
  c.inactive_params = {{}, {3, 9}, {0, 10}, {}};
  return c;
}

/// Checks runs that continue on a different mesh.
/// @param each  Only every `each`-th mesh is used.
void over_meshes(
    bool half, size_t each = kEach,
    const std::function<void(world::Case&)>& set = [](world::Case&) {}) {
  const auto made = [&](const bits::Factors& f) {
    world::Case c = make(f, half);
    set(c);
    return c;
  };
  const auto expected = world::run(made({})).tensors;
  const size_t meshes = bits::meshes().size();
  for (size_t i = 0; i < meshes; i += each) {
    const bits::Factors from = {.mesh = i, .scheme = static_cast<int>(i % bits::kSchemes)};
    const bits::Factors to = {.mesh = (i * 5 + 3) % meshes,
                              .scheme = static_cast<int>((i + 2) % bits::kSchemes),
                              .chunk = static_cast<int>(i % 3),
                              .commit = static_cast<int>(i % 2)};
    check_moved(made(from), made(to), expected);
  }
}

}  // namespace

TEST_CASE("checkpoint: continuing in another world gives the bits of a run without interruption",
          "[bits][state]") {
  over_meshes(false);
  over_meshes(true);
}

TEST_CASE("checkpoint: remainders, stochastic rounding and bf16 momentum continue bitwise",
          "[bits][state]") {
  for (const MasterKind kind :
       {MasterKind::kOwned, MasterKind::kRemainder, MasterKind::kStochastic, MasterKind::kNone}) {
    over_meshes(false, 3 * kEach, [&](world::Case& c) {
      c.settings.seed = 20261126;
      c.settings.groups[0].momentum_dtype =
          kind == MasterKind::kRemainder ? DType::kBF16 : DType::kF32;
      c.settings.groups[0].normuon_axis = NormuonAxis::kLonger;
      for (world::Param& p : c.params) {
        p.dtype = DType::kBF16;
        p.master_kind = kind;
      }
    });
  }
}

TEST_CASE("checkpoint: every form of layout, stacks and parts continue bitwise, with NorMuon",
          "[bits][state]") {
  const auto made = [](const forms::Form& form, ReplicaMode replicas) {
    world::Case c = forms::make(form, 2, CommitMode::kAtomic, 2048);
    c.settings.groups = world::default_groups();
    c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
    c.settings.replica_mode = replicas;
    c.steps = kSteps;
    return c;
  };
  const auto all = forms::all();
  const auto expected =
      world::run(made({"alone", {1}, forms::whole_on_all}, ReplicaMode::kOnce)).tensors;
  for (size_t i = 0; i < all.size(); i += kEach) {
    check_moved(
        made(all[i], i % 2 ? ReplicaMode::kEach : ReplicaMode::kOnce),
        made(all[(i * 7 + 4) % all.size()], i % 3 ? ReplicaMode::kOnce : ReplicaMode::kEveryRank),
        expected);
  }
}

TEST_CASE("checkpoint: state that owners keep for partial gradients continues bitwise",
          "[bits][state]") {
  const Placement sum{PlacementKind::kPartial, 0, 1}, all{PlacementKind::kReplicate, 0, 1};
  const auto shard = [](int dim) { return Placement{PlacementKind::kShard, dim, 1}; };
  const std::vector<gradients::Lay> lays = {
      {"DDP", {2}, {sum}, {}, {}},
      {"rows without, ranks mixed", {3, 2}, {shard(0), sum}, {}, {4, 1, 0, 5, 3, 2}},
      {"columns, replicated", {2, 2, 2}, {all, sum, shard(-1)}, {}, {}},
      {"gradients in other cuts", {2, 2}, {shard(0), all}, {sum, shard(-1)}, {}}};
  for (const bool half : {false, true}) {
    const auto made = [&](const gradients::Lay& lay) {
      world::Case c = gradients::make(lay, half, 2);
      c.steps = kSteps;
      return c;
    };
    world::Case alone = gradients::alone(half, 2);
    alone.steps = kSteps;
    const auto expected = world::run(alone).tensors;
    for (size_t i = 0; i < lays.size(); ++i) {
      check_moved(made(lays[i]), made(lays[(i + 1) % lays.size()]), expected);
      check_moved(made(lays[i]), alone, expected);
      check_moved(alone, made(lays[i]), expected);
    }
  }
}

TEST_CASE("checkpoint: random draws of two worlds", "[bits][state]") {
  const unsigned seed = Catch::rngSeed();
  WARN("random draws with seed " << seed << " (give it as --rng-seed)");
  std::mt19937 random(seed);
  const auto draw = [&](bool half) {
    return make({.mesh = random() % bits::meshes().size(),
                 .scheme = static_cast<int>(random() % bits::kSchemes),
                 .window = static_cast<int>(1 + random() % 8),
                 .chunk = static_cast<int>(random() % 3),
                 .commit = static_cast<int>(random() % 2)},
                half);
  };
  for (const bool half : {false, true}) {
    const auto expected = world::run(make({}, half)).tensors;
    for (int i = 0; i < (kSanitized ? 1 : 4); ++i) check_moved(draw(half), draw(half), expected);
  }
}

TEST_CASE("checkpoint: parameters that the caller restores give the same bits as saved ones",
          "[bits][state]") {
  const world::Case c = make({.mesh = 5, .scheme = 1}, true), to = make({.mesh = 9}, true);
  const auto expected = world::run(c).tensors;
  const test_support::Folder folder;
  const auto params = resumed::save(c, kStop, folder.path(), {.with_params = false});
  world::check_same(to, resumed::load(to, kStop, kSteps, folder.path(), {}, &params), expected);
  CHECK_THROWS_WITH(resumed::load(to, kStop, kSteps, folder.path()),
                    Catch::Contains("differ from those at the time of the save"));
}

TEST_CASE("checkpoint: stochastic rounding uses the saved keys if the order of parameters changes",
          "[bits][state]") {
  // The cases differ only in the order of the parameters. Gradients depend on the index of the
  // parameter, so they are also swapped.
  const auto made = [](bool turned, int64_t seed) {
    world::Case c = world::on_mesh({2});
    c.settings.seed = seed;
    c.settings.groups = world::default_groups();
    for (const bool second : {turned, !turned}) {
      const char* const name = second ? "b" : "a";
      world::Param p = world::matrix(name, {9, 7}, {{PlacementKind::kShard, 0, 1}});
      p.dtype = DType::kBF16;
      p.master_kind = MasterKind::kStochastic;
      c.params.push_back(p);
    }
    return c;
  };
  const world::Case c = made(false, 7), turned = made(true, 8);
  const test_support::Folder folder;
  resumed::save(c, 1, folder.path());
  std::vector<RandomKeys> keys(2);
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(turned, comm);
    load_state(rank.optimizer(), folder.path(), {});
    keys[static_cast<size_t>(comm.rank())] = rank.optimizer().random_keys();
  });
  for (const RandomKeys& k : keys) {
    CHECK(k.seed == 7);
    CHECK(k.keys == std::vector<uint32_t>{1, 0});
  }
}

TEST_CASE("checkpoint: f32 weights do not change if master weights become remainders or vice versa",
          "[bits][state]") {
  const auto made = [](MasterKind kind, size_t mesh) {
    world::Case c = make({.mesh = mesh, .scheme = 2}, false);
    for (world::Param& p : c.params) {
      p.dtype = DType::kBF16;
      p.master_kind = kind;
    }
    return c;
  };
  // Weights that are converted from master weights to remainders and back must equal the weights of
  // an uninterrupted run.
  const world::Case owned = made(MasterKind::kOwned, 0), split = made(MasterKind::kRemainder, 6);
  const test_support::Folder first, second;
  resumed::save(owned, 1, first.path());
  world::on_ranks(split.world, [&](Comm& comm) {
    comm.set_timeout_ms(60000);
    world::Rank rank(split, comm);
    RANK_CHECK(!load_state(rank.optimizer(), first.path(), {}).empty());
    resumed::run_steps(rank, 1, kStop);
    Files files;
    save_state(rank.optimizer(), second.path(), {.with_params = true}, files);
  });
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank whole(owned, comm), rank(owned, comm);
    resumed::run_steps(whole, 0, kSteps);
    RANK_CHECK(!load_state(rank.optimizer(), second.path(), {}).empty());
    resumed::run_steps(rank, kStop, kSteps);
    for (int64_t p = 0; p < std::ssize(owned.params); ++p)
      RANK_CHECK(rank.state(p, StateKind::kMaster) == whole.state(p, StateKind::kMaster));
  });
}
