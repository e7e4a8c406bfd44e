#include "train/cluster.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <list>
#include <memory>
#include <thread>

#include "support/folder.hpp"
#include "train/mesh.hpp"
#include "train/shards.hpp"

using namespace muonrt;
using namespace muonrt::train;
using namespace muonrt::train::test;

TEST_CASE("train: losses over any number of ranks and any mesh are equal to the bit", "[train]") {
  const Corpus corpus = tiny_corpus();
  const Options options = tiny_options();
  for (const std::string optimizer : {"muon", "adamw"}) {
    const RunResult one = train_on(1, "", options, optimizer, corpus);
    CHECK(one.curve.points.front().val_loss - one.val_loss > 0.5);  // it learns
    struct Other {
      int ranks;
      const char* mesh;
    };
    for (const Other& other : {Other{4, "dp=2,fsdp=2"}, Other{4, "fsdp=4"}, Other{4, "tp=2,fsdp=2"},
                               Other{3, "fsdp=3"}, Other{8, "dp=2,fsdp=2,tp=2"}}) {
      INFO(optimizer << " on " << other.mesh);
      const RunResult many = train_on(other.ranks, other.mesh, options, optimizer, corpus);
      REQUIRE(many.curve.points.size() == one.curve.points.size());
      for (size_t i = 1; i < one.curve.points.size(); ++i) {
        CHECK(many.curve.points[i].train_loss == one.curve.points[i].train_loss);
      }
      CHECK(many.val_loss == one.val_loss);
    }
  }
}

TEST_CASE("train: a resumed run goes on to the same losses, its optimizer's memory here or apart",
          "[train]") {
  /// As a GPU's: the model's shards are a copy.
  class Apart : public DeviceMemory {
   public:
    float* make(int64_t elements) override {
      return blocks_.emplace_back(static_cast<size_t>(elements)).data();
    }
    void put(float* to, const std::vector<float>& from) override {
      std::copy(from.begin(), from.end(), to);
    }
    void get(std::vector<float>& to, const float* from) override {
      std::copy_n(from, to.size(), to.begin());
    }

   private:
    std::list<std::vector<float>> blocks_;
  };
  Place apart;
  apart.make_memory = [] { return std::make_unique<Apart>(); };
  const Corpus corpus = tiny_corpus();
  const test_support::Folder folder;
  Options options = tiny_options();
  options.warmup = 0.0;  // With one rate for all steps a shorter run is the beginning of a longer.
  options.final_lr = 1.0;
  const RunResult whole = train_on(1, "", options, "muon", corpus);
  Options first = options;
  first.steps = 5;
  first.save = folder.path();
  first.save_every = 2;
  train_on(3, "fsdp=3", first, "muon", corpus, 0.02, apart);
  options.resume = first.save;
  for (const Place& place : {Place(), apart}) {
    const RunResult rest = train_on(4, "fsdp=2,tp=2", options, "muon", corpus, 0.02, place);
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
}

TEST_CASE("train: a mesh that does not fit the ranks is refused with its size", "[train]") {
  using Catch::Contains;
  CHECK_THROWS_WITH(TrainMesh("dp=3,fsdp=2", 4), Contains("6 places for 4 ranks"));
  CHECK_THROWS_WITH(TrainMesh("dp", 1), Contains("'dp' is no dimension"));
  CHECK_THROWS_WITH(TrainMesh("dp=0", 1), Contains("'dp=0' is no dimension"));
  CHECK_THROWS_WITH(TrainMesh("=4", 4), Contains("'=4' is no dimension"));
  CHECK(TrainMesh("", 4).text() == "dp=2,fsdp=2");
  CHECK(TrainMesh("", 3).text() == "fsdp=3");
  CHECK(TrainMesh("dp=2,fsdp=2", 4).shard_group(3) == std::vector<int>{2, 3});
}

TEST_CASE("train: shards gather to the whole and reduce to the sum", "[train]") {
  const std::vector<ParamSpec> specs = {{"a", {5, 3}, Role::kMatrix}, {"b", {7}, Role::kVector}};
  constexpr int kRanks = 4;
  ThreadGroup group(kRanks);
  std::vector<std::thread> threads;
  std::vector<std::string> problems(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Comm comm = group.comm(rank);
      const TrainMesh mesh("fsdp=2,tp=2", kRanks);
      Shards shards(mesh, specs, rank);
      std::vector<float> a(15), b(7), ga(15), gb(7);
      for (size_t i = 0; i < 15; ++i) a[i] = static_cast<float>(i);
      for (size_t i = 0; i < 7; ++i) b[i] = static_cast<float>(100 + i);
      const float* full[] = {a.data(), b.data()};
      float* gathered[] = {ga.data(), gb.data()};
      std::vector<float> local(static_cast<size_t>(shards.local_elements()), -1.0f);
      shards.extract(full, local.data());
      shards.gather(comm, local.data(), gathered);
      std::string& problem = problems[static_cast<size_t>(rank)];
      if (ga != a || gb != b) problem += "gather ";
      std::vector<int64_t> sa(15), sb(7);
      for (size_t i = 0; i < 15; ++i) sa[i] = Sum::of(a[i] * static_cast<float>(rank + 1));
      for (size_t i = 0; i < 7; ++i) sb[i] = Sum::of(b[i]);
      const int64_t* sums[] = {sa.data(), sb.data()};
      shards.reduce_scatter(comm, sums, local.data());
      std::fill(ga.begin(), ga.end(), 0.0f);
      shards.gather(comm, local.data(), gathered);
      for (size_t i = 0; i < 15; ++i) {
        if (ga[i] != 10.0f * static_cast<float>(i)) problem += "reduce ";
      }
      if (gb[3] != 4.0f * b[3]) problem += "reduce vector ";
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& p : problems) CHECK(p == "");
}
