// Tests which parameters a checkpoint contains, how a load restores them, and which folders a save
// writes to.

#include <catch2/catch.hpp>
#include <filesystem>

#include "support/checkpoints.hpp"

using namespace muonrt;
using namespace resumed;
using Catch::Contains;
using test_support::Folder;

namespace {

/// Returns a case with a sharded f32 matrix, a sharded bf16 matrix and a replicated bf16 vector.
world::Case mixed(MasterKind kind, std::vector<int64_t> mesh = {2}) {
  world::Case c = world::on_mesh(std::move(mesh));
  c.settings.groups = world::default_groups();
  c.params.push_back(world::matrix("f", {6, 5}, {{PlacementKind::kShard, 0, 1}}));
  c.params.push_back(world::matrix("w", {7, 9}, {{PlacementKind::kShard, 1, 1}}));
  c.params.push_back(world::matrix("b", {11}, {{PlacementKind::kReplicate, 0, 1}}));
  c.params.back().role = Role::kAdamW;
  for (size_t p : {1, 2}) {
    c.params[p].dtype = DType::kBF16;
    c.params[p].master_kind = kind;
  }
  return c;
}

Manifest manifest_in(const std::string& folder) {
  return parse_manifest(content(folder + "/manifest.json"), "manifest.json");
}

/// Returns the names of the parameters whose values are in the checkpoint.
std::string stored(const std::string& folder) {
  std::string out;
  for (const ManifestParam& p : manifest_in(folder).params)
    if (p.state.contains("param")) out += p.name;
  return out;
}

/// Returns whether loading into a new optimizer restores the saved parameters.
bool restored(const world::Tensors& at_save, const world::Case& c, const std::string& folder,
              const LoadSettings& how = {}) {
  return resumed::load(c, 0, 0, folder, how).tensors.params == at_save.params;
}

}  // namespace

TEST_CASE("checkpoint: parameters are saved by default, bf16 ones as their master weights",
          "[unit][state]") {
  for (const auto& [kind, expected] : {std::pair{MasterKind::kOwned, "f"},
                                       {MasterKind::kRemainder, "fwb"},
                                       {MasterKind::kStochastic, "fwb"},
                                       {MasterKind::kNone, "fwb"}}) {
    const Folder folder;
    const auto at_save = resumed::save(mixed(kind), 2, folder.path(), {});
    CHECK(manifest_in(folder.path()).with_params);
    CHECK(stored(folder.path()) == expected);
    CHECK(restored(at_save, mixed(kind), folder.path()));
    CHECK(restored(at_save, mixed(kind, {3}), folder.path()));
  }
}

TEST_CASE("checkpoint: master weights of a checkpoint without parameters restore bf16 parameters",
          "[unit][state]") {
  const Folder folder;
  world::Case c = mixed(MasterKind::kOwned);
  c.params.erase(c.params.begin());
  const auto at_save = resumed::save(c, 2, folder.path(), {.with_params = false});
  CHECK(stored(folder.path()).empty());
  CHECK(restored(at_save, c, folder.path()));
  // If master weights are converted to remainders, the f32 weights stay the same, but in the bf16
  // parameters ties are rounded away from zero.
  c.params[0].master_kind = c.params[1].master_kind = MasterKind::kRemainder;
  CHECK(problem_of([&] { resumed::load(c, 0, 0, folder.path()); }) == "no error");
  CHECK_THAT(problem_of([&] { resumed::load(c, 0, 0, folder.path(), {.with_params = false}); }),
             Contains("param 'w'") && Contains("differ from those at the time of the save"));
}

TEST_CASE("checkpoint: a parameter that the caller has rounded differently keeps its bits",
          "[unit][state]") {
  for (const bool with_params : {true, false}) {
    const Folder folder;
    const world::Case c = mixed(MasterKind::kOwned);
    const auto at_save = world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
      run_steps(rank, 0, 2);
      // Changes the weight to the adjacent value on the other side of its master weight.
      if (comm.rank() == 1) rank.data(1)[0] ^= 1;
      Files files;
      save_state(rank.optimizer(), folder.path(), {.with_params = with_params}, files);
    });
    CHECK(stored(folder.path()) == (with_params ? "fw" : ""));
    CHECK(manifest_in(folder.path()).params[1].hash != 0);
    if (with_params) {
      CHECK(restored(at_save, c, folder.path()));
    } else {
      CHECK_THAT(problem_of([&] { resumed::load(c, 0, 0, folder.path()); }),
                 Contains("param 'f'") && Contains("first restore the parameters"));
      CHECK(resumed::load(c, 0, 0, folder.path(), {}, &at_save).tensors.params == at_save.params);
    }
  }
}

TEST_CASE("checkpoint: a folder with a checkpoint of another model is rejected without overwrite",
          "[unit][state]") {
  const auto changed = [](auto change) {
    world::Case c = small();
    change(c.params);
    return c;
  };
  using Params = std::vector<world::Param>;
  const std::pair<world::Case, const char*> others[] = {
      {changed([](Params& p) { p[0].shape[0] = 8; }), "param 'w' has another shape there"},
      {changed([](Params& p) { p[1].name = "bias"; }), "param 'bias' is not in it"},
      {changed([](Params& p) { p.pop_back(); }), "param 'b' is only there"},
      {changed([](Params& p) {
         p.push_back(world::matrix("v", {2, 3}, {}));
       }),
       "param 'v' is not in it"}};
  for (const auto& [other, problem] : others) {
    const Folder folder;
    resumed::save(small(), 1, folder.path());
    const auto names = names_in(folder.path());
    const std::string before = content(folder.path() + "/manifest.json");
    CHECK_THAT(problem_of([&] { resumed::save(other, 1, folder.path(), {}); }),
               Contains("INVALID_ARGUMENT") && Contains(folder.path()) && Contains(problem) &&
                   Contains("overwrite"));
    CHECK(names_in(folder.path()) == names);
    CHECK(content(folder.path() + "/manifest.json") == before);
    resumed::save(other, 1, folder.path(), {.overwrite = true});
    CHECK(problem_of([&] { resumed::load(other, 0, 0, folder.path()); }) == "no error");
  }
  // A different mesh, different dtypes and a different order of parameters do not make a different
  // model.
  const Folder folder;
  resumed::save(small(), 2, folder.path());
  world::Case same = small();
  same.mesh = {1};
  same.world = 1;
  std::swap(same.params[0], same.params[1]);
  same.params[0].dtype = DType::kF32;
  CHECK(problem_of([&] { resumed::save(same, 1, folder.path(), {}); }) == "no error");
  put(folder.path() + "/manifest.json", "damaged");
  CHECK(problem_of([&] { resumed::save(others[0].first, 1, folder.path(), {}); }) == "no error");
}

TEST_CASE("checkpoint: a save creates the parents of its folder", "[unit][state]") {
  const Folder folder;
  for (const char* const path : {"/a/b/c", "/a/b/d//e/", "/f"}) {
    resumed::save(small(), 1, folder.path() + path, {});
    CHECK(std::filesystem::exists(folder.path() + path + "/manifest.json"));
  }
  put(folder.path() + "/file", "x");
  CHECK_THAT(problem_of([&] { resumed::save(small(), 1, folder.path() + "/file/a/b", {}); }),
             Contains("IO") && Contains("/file"));
}
