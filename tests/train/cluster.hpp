#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "train/mesh.hpp"
#include "train/run.hpp"

namespace muonrt::train::test {

/// Returns a text that a model can learn from.
inline Corpus tiny_corpus() {
  Text text;
  text.name = "made up";
  const std::string words[] = {"and the lord ", "said unto ", "moses ", "in the beginning ", "\n"};
  for (uint32_t i = 0; text.bytes.size() < 60000; ++i) {
    for (const char c : words[(i * 2654435761u >> 16) % 5]) {
      text.bytes.push_back(static_cast<uint8_t>(c));
    }
  }
  return Corpus(std::move(text), preset("tiny").context);
}

inline Options tiny_options() {
  Options o;
  o.preset = "tiny";
  o.steps = 12;
  o.batch = 8;
  o.eval_every = 4;
  o.eval_windows = 12;
  return o;
}

/// Trains on ranks that are threads, with a peak learning rate of 0.02. Checks that all ranks have
/// the same validation loss.
inline RunResult train_on(int ranks, const std::string& mesh_text, const Options& options,
                          const std::string& optimizer, const Corpus& corpus) {
  ThreadGroup group(ranks);
  std::vector<RunResult> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Comm comm = group.comm(rank);
      const TrainMesh mesh(mesh_text, ranks);
      RunPlan plan;
      plan.optimizer = optimizer;
      plan.lr = 0.02;
      results[static_cast<size_t>(rank)] = run_training(comm, mesh, options, plan, corpus, nullptr);
    });
  }
  for (std::thread& t : threads) t.join();
  for (const RunResult& r : results) CHECK(r.val_loss == results[0].val_loss);
  return results[0];
}

/// Checks that two curves are bitwise identical in every step.
inline void check_equal(const RunResult& one, const RunResult& many) {
  REQUIRE(many.curve.points.size() == one.curve.points.size());
  for (size_t i = 1; i < one.curve.points.size(); ++i) {
    CHECK(many.curve.points[i].train_loss == one.curve.points[i].train_loss);
  }
  CHECK(many.val_loss == one.val_loss);
  CHECK(many.max_logits == one.max_logits);
  CHECK(many.clipped_heads == one.clipped_heads);
}

}  // namespace muonrt::train::test
