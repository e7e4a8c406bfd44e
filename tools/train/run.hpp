#pragma once

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "train/curve.hpp"
#include "train/mesh.hpp"
#include "train/options.hpp"
#include "train/place.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// One training run: an optimizer and a seed.
struct RunPlan {
  std::string optimizer;  // of Options::optimizers
  uint64_t seed = 1;
  double lr = 0.0;          // peak rate of TrainOptimizer::lr; the others in proportion
  int64_t later_steps = 0;  // of the runs behind this one, for the time left
};

/// What came of it; equal on every rank but for `trace` and `plan`.
struct RunResult {
  Curve curve;
  double val_loss = 0.0;                                         // after the last step
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // of the last step here
  double tokens_per_second = 0.0;                                // 0 where no step was left
  double optimizer_ms = 0.0;                                     // mean of a step
  double exposed_ms = 0.0;
  int64_t first_step = 0;  // done before this run, which resumed a checkpoint
  int64_t steps = 0;       // done, those among them
  /// Of each step here: the largest input of any attention softmax over the whole batch, with the
  /// weights before the step.
  std::vector<float> max_logits;
  int64_t clipped_heads = 0;  // by QK-clip, summed over these steps
  bool interrupted = false;
  std::string health;       // rank 0: a line for each step that measured
  std::string health_json;  // rank 0: a list of their matrices
  std::string sample;       // rank 0
  std::string trace;        // this rank's, if asked for
  std::string plan;         // rank 0: the optimizer's plan
};

/// @param signal  that asks for it, in any thread. The first one counts.
void request_stop(int signal);
/// The number of the signal that asked this process to stop; 0: none has.
int stop_requested();

/// Trains on all ranks of `comm`. Collective. @param out  progress of rank 0.
RunResult run_training(Comm& comm, const TrainMesh& mesh, const Options& options,
                       const RunPlan& plan, const Corpus& corpus, std::FILE* out,
                       const Place& place = {});

}  // namespace muonrt::train
