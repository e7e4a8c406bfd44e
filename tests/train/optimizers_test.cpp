#include "opt_json/optimizers.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "train/cluster.hpp"
#include "train/optimizer.hpp"

using namespace muonrt;
using namespace muonrt::train;
using namespace muonrt::train::test;

namespace {

std::string written(const std::string& text) {
  const std::string path = "optimizers_test.opt.json";
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE("train optimizers: each published one lowers the loss, and no two are the same",
          "[train][nosan]") {
  const Corpus corpus = tiny_corpus();
  std::vector<double> losses;
  for (const tool::NamedOptimizer& optimizer : tool::named_optimizers()) {
    INFO(optimizer.name);
    const RunResult run =
        train_on(2, "fsdp=2", tiny_options(), std::string(optimizer.name), corpus);
    CHECK(run.curve.points.front().val_loss - run.val_loss > 0.1);
    losses.push_back(run.val_loss);
  }
  std::sort(losses.begin(), losses.end());
  CHECK(std::adjacent_find(losses.begin(), losses.end()) == losses.end());
}

TEST_CASE("train optimizers: QK-clip holds the attention logits, bitwise identically on a mesh",
          "[train]") {
  const Corpus corpus = tiny_corpus();
  Options options = tiny_options();
  options.steps = 24;
  options.warmup = 0;
  options.final_lr = 1;
  const RunResult free = train_on(1, "", options, "muon", corpus);
  options.qk_clip = 1.0;
  const RunResult held = train_on(1, "", options, "muon", corpus);
  // Before the first step, both models have the same weights, and their logits exceed the
  // threshold.
  CHECK(held.max_logits[0] == free.max_logits[0]);
  CHECK(held.max_logits[0] > 1.0f);
  CHECK(free.clipped_heads == 0);
  CHECK(held.clipped_heads > 0);
  // One step and a different batch may increase a logit above the threshold, but only slightly.
  CHECK(*std::max_element(held.max_logits.begin() + 1, held.max_logits.end()) < 1.5f);
  CHECK(*std::max_element(free.max_logits.begin(), free.max_logits.end()) > 1.6f);
  CHECK(held.curve.points.front().val_loss - held.val_loss > 0.15);
  check_equal(held, train_on(4, "fsdp=2,tp=2", options, "muon", corpus));
}

TEST_CASE("train optimizers: a file is an optimizer; unsupported keys are rejected with an error",
          "[train]") {
  const Config model = preset("tiny");
  using Catch::Contains;
  const std::string rest = R"({"name": "*", "role": "adamw", "lr": 0.01}]})";
  const auto rules = [&](const std::string& more) {
    return R"({"rules": [{"name": "h*.w*", "role": "muon", "lr": 0.02, )" + more + "}, " + rest;
  };
  const TrainOptimizer good(written(rules(R"("steps": 7)")), model, 3.0, 6);
  CHECK(good.lr() == 0.02);
  CHECK(good.groups(0).size() == 2);
  CHECK(good.groups(0)[0].steps == 7);
  CHECK(good.clipped_layers() == std::vector<int32_t>{0, 1});
  muonrt_param_t param = muonrt::param();
  good.fill(param, ParamIndex::layer(1, ParamIndex::kWk));
  REQUIRE(param.qk_clip != nullptr);
  CHECK(param.qk_clip->kind == MUONRT_QK_KEY);
  CHECK(param.qk_clip->layer == 1);
  CHECK(param.qk_clip->heads == model.heads);
  CHECK(param.qk_clip->head_dim == model.head_dim());
  CHECK(param.qk_clip->threshold == 3.0);
  good.fill(param, ParamIndex::layer(1, ParamIndex::kWv));
  CHECK(param.qk_clip == nullptr);
  for (const auto& [text, words] : {
           std::pair{rules(R"("placements": "R")"), "rules[0].placements"},
           std::pair{rules(R"("parts": {"heads": 2})"), "rules[0].parts"},
           std::pair{rules(R"("stepz": 2)"), "stepz"},
           std::pair{R"({"rules": [{"name": "wte", "role": "frozen"}, )" + rest,
                     "rules[0].role: frozen"},
           std::pair{std::string(R"({"rules": [{"name": "*", "role": "muon", "lr": 1}]})"),
                     "'h0.norm1' is a vector"},
           std::pair{rules(R"("lr_schedule": {"kind": "linear", "total_steps": 5})"),
                     "rules[0].lr_schedule: total_steps is 5, but --steps is 6"},
           std::pair{rules(R"("lr_schedule": {"kind": "linear", "warmup_steps": 6})"),
                     "rules[0].lr_schedule: total_steps is 6, but warmup_steps 6 need"},
           std::pair{rules(R"("qk_clip": {"kind": "k", "layer": 0, "heads": 2, "head_dim": 16})"),
                     "rules[0].qk_clip.kind: k, but layer 0's wq holds queries"},
       }) {
    CHECK_THROWS_WITH(TrainOptimizer(written(text), model, 0, 6), Contains(words));
  }
  CHECK_NOTHROW(TrainOptimizer(
      written(rules(R"("lr_schedule": {"kind": "linear", "total_steps": 5, "min_factor": 0.1})")),
      model, 0, 6));
  // If a parameter has no role, its name determines the role, so AdamW updates embeddings, the head
  // and gains.
  const TrainOptimizer named(written(R"({"rules": [{"name": "*", "lr": 0.01}]})"), model, 0, 6);
  REQUIRE(named.groups(0).size() == 2);
  for (int64_t i = 0; i < std::ssize(param_specs(model)); ++i) {
    named.fill(param, i);
    const bool muon = named.groups(0)[static_cast<size_t>(param.group)].role == MUONRT_ROLE_MUON;
    CHECK(muon == (param_specs(model)[static_cast<size_t>(i)].role == Role::kMatrix));
  }
  std::remove("optimizers_test.opt.json");
}

TEST_CASE("train optimizers: an lr_schedule without total_steps ends with the run", "[train]") {
  const std::string text = R"({"rules": [{"name": "*", "role": "muon", "lr": 0.02, "momentum": 0.5,
      "lr_schedule": {"kind": "cosine", "warmup_steps": 2, "min_factor": 0.1}},
      {"name": "never", "role": "adamw", "lr": 1}]})";
  const std::string vectors = R"({"name": "*norm*", "role": "adamw", "lr": 0.01}, )";
  const std::string file = written(text.substr(0, 11) + vectors + text.substr(11));
  for (const int64_t steps : {4, 7}) {
    const TrainOptimizer optimizer(file, preset("tiny"), 0, steps);
    for (int64_t step = 0; step < steps + 2; ++step) {
      const double part =
          std::min(1.0, static_cast<double>(step - 2) / static_cast<double>(steps - 2));
      const double factor = step < 2 ? static_cast<double>(step + 1) / 2
                                     : 0.1 + 0.9 * (1 + std::cos(std::acos(-1.0) * part)) / 2;
      CHECK(optimizer.groups(step)[1].lr_factor == Approx(0.02 * factor).epsilon(1e-12));
    }
  }
  std::remove("optimizers_test.opt.json");
}

TEST_CASE("train optimizers: a first step that moves a matrix far is reported once", "[train]") {
  const Corpus corpus = tiny_corpus();
  Options options = tiny_options();
  options.steps = 2;
  options.warmup = 0;
  const RunResult far = train_on(2, "fsdp=2", options, "muon", corpus);
  CHECK_THAT(far.warning, Catch::StartsWith("param 'h") && Catch::EndsWith(" instead of 0.02") &&
                              Catch::Contains("% of its RMS, which is above 5%; try --lr 0.00"));
  options.warmup = 1;
  options.steps = 20;
  options.eval_every = 20;
  CHECK(train_on(2, "fsdp=2", options, "muon", corpus).warning.empty());
}

TEST_CASE("train optimizers: contradictory arguments are rejected with an error that names them",
          "[train]") {
  struct Row {
    const char* optimizer;
    std::vector<double> lr;
    double qk_clip;
    const char* words;
  };
  for (const Row& row : {Row{"muon,nothing", {}, 0, "'nothing' is not known; use one of adamw, "},
                         Row{"adamw", {}, 100, "--qk-clip is 100"},
                         Row{"adamw,normuon,muon", {0.1, 0.2}, 0, "--lr is a list of 2"},
                         Row{"adamw", {0}, 0, "--lr is 0"},
                         Row{"muon,normuon,muon", {}, 0, "name each optimizer once"},
                         Row{"muon,", {}, 0, "remove the empty name"},
                         Row{"muon,,normuon", {}, 0, "remove the empty name"},
                         Row{"", {}, 0, "--optimizer is empty"}}) {
    Options o = tiny_options();
    o.optimizer = row.optimizer;
    o.lr = row.lr;
    o.qk_clip = row.qk_clip;
    CHECK_THROWS_WITH(check_options(o), Catch::Contains(row.words));
  }
  Options o = tiny_options();
  o.optimizer = "adamw,normuon,muon";
  o.qk_clip = 100;
  CHECK_NOTHROW(check_options(o));
}
