#include "train/cluster.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <tuple>

#include "support/folder.hpp"

using namespace muonrt;
using namespace muonrt::train;
using namespace muonrt::train::test;

TEST_CASE("train: losses are bitwise identical on any number of ranks and any mesh", "[train]") {
  const Corpus corpus = tiny_corpus();
  const Options options = tiny_options();
  for (const std::string optimizer : {"muon", "adamw"}) {
    const RunResult one = train_on(1, "", options, optimizer, corpus);
    // At first, the loss corresponds to random guesses among 256 bytes, and then the model learns.
    CHECK(one.curve.points.front().val_loss == Approx(std::log(256.0)).margin(0.2));
    CHECK(one.curve.points.front().val_loss - one.val_loss > 0.5);
    for (const auto& [ranks, mesh] : {std::pair{4, "dp=2,fsdp=2"}, std::pair{4, "tp=2,fsdp=2"},
                                      std::pair{3, "fsdp=3"}, std::pair{8, "dp=2,fsdp=2,tp=2"}}) {
      INFO(optimizer << " on " << mesh);
      check_equal(one, train_on(ranks, mesh, options, optimizer, corpus));
    }
  }
}

TEST_CASE("train: a run resumed on another mesh continues to the same losses", "[train]") {
  const Corpus corpus = tiny_corpus();
  const test_support::Folder folder;
  Options options = tiny_options();
  // If the learning rate is constant, the losses of a shorter run are a prefix of those of a longer
  // run.
  options.warmup = 0.0;
  options.final_lr = 1.0;
  const RunResult whole = train_on(1, "", options, "muon", corpus);
  Options first = options;
  first.steps = 5;
  first.save = folder.path();
  first.save_every = 2;
  train_on(3, "fsdp=3", first, "muon", corpus);
  options.resume = first.save;
  const RunResult rest = train_on(4, "fsdp=2,tp=2", options, "muon", corpus);
  CHECK(rest.first_step == 5);
  REQUIRE(rest.curve.points.size() == 8);
  CHECK(rest.curve.points[0].step == 5);
  for (size_t i = 1; i < rest.curve.points.size(); ++i) {
    CHECK(rest.curve.points[i].step == whole.curve.points[i + 5].step);
    CHECK(rest.curve.points[i].train_loss == whole.curve.points[i + 5].train_loss);
    CHECK(rest.curve.points[i].tokens == whole.curve.points[i + 5].tokens);
  }
  CHECK(rest.val_loss == whole.val_loss);
}

TEST_CASE("train: a mesh that does not fit the ranks, or has an unknown name, is rejected",
          "[train]") {
  using Catch::Contains;
  for (const auto& [text, ranks, words] :
       {std::tuple{"dp=3,fsdp=2", 4, "the product 6, but there are 4 ranks"},
        std::tuple{"dp", 1, "'dp' is not a dimension"},
        std::tuple{"dp=0", 1, "'dp=0' is not a dimension"},
        std::tuple{"=4", 4, "'=4' is not a dimension"},
        std::tuple{"dp=2,fdsp=2", 4,
                   "--mesh: mesh dimension 'fdsp' has an unknown name, the nearest is 'fsdp'"},
        std::tuple{"pp=2,fsdp=2", 4, "mesh dimension 'pp'"}}) {
    CHECK_THROWS_WITH(TrainMesh(text, ranks), Contains(words));
  }
  for (const char* name : {"dp_shard", "zero", "shard", "fsdp"}) {
    const TrainMesh mesh(std::string("dp_replicate=2,") + name + "=2", 4);
    for (const int dims : {1, 2}) {
      INFO(name << " of " << dims << " dimensions");
      CHECK(mesh.placements(dims)[0].kind == MUONRT_PLACEMENT_REPLICATE);
      CHECK(mesh.placements(dims)[1].kind == MUONRT_PLACEMENT_SHARD);
      CHECK(mesh.placements(dims)[1].dim == 0);
    }
  }
  CHECK(TrainMesh("", 4).text() == "dp=2,fsdp=2");
  CHECK(TrainMesh("", 3).text() == "fsdp=3");
}
