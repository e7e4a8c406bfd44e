#pragma once

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "train/curve.hpp"
#include "train/curve_log.hpp"
#include "train/mesh.hpp"
#include "train/options.hpp"
#include "train/place.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// A planned training run: an optimizer and a seed.
struct RunPlan {
  std::string optimizer;  // one of Options::optimizers
  uint64_t seed = 1;
  // peak of TrainOptimizer::lr; the learning rates of other groups keep their ratio to it
  double lr = 0.0;
  int64_t later_steps = 0;  // steps of the following runs, for the remaining time
};

/// The result of a run. It is the same on every rank, except for the fields marked "rank 0".
struct RunResult {
  Curve curve;
  double val_loss = 0.0;                                         // after the last step
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // in the last step of this run
  double tokens_per_second = 0.0;                                // 0 if no step remained
  double optimizer_ms = 0.0;                                     // mean over the steps of this run
  double exposed_ms = 0.0;
  int64_t first_step = 0;  // number of steps before this run, in the checkpoint
  int64_t steps = 0;       // number of all steps, including steps before this run
  /// For each step of this run: the largest input of an attention softmax over the whole batch,
  /// with the weights before the step.
  std::vector<float> max_logits;
  int64_t clipped_heads = 0;      // number of heads that QK-clip scaled, over all steps
  int64_t saved_param_bytes = 0;  // size of the parameters in the last checkpoint
  bool interrupted = false;
  std::string warning;      // a warning if the first step changed a matrix by more than 5%
  std::string health;       // rank 0: a line for each step with statistics
  std::string health_json;  // rank 0: the statistics as a JSON list
  std::string trace;        // rank 0: the last steps of all ranks, if requested
  std::string plan;         // rank 0: the optimizer's plan
};

/// Asks all runs of this process to stop after the current step. Any thread may call it. Only the
/// first signal counts.
void request_stop(int signal);
/// Returns the number of the signal that asked this process to stop, or 0.
int stop_requested();

/// Trains on all ranks of `comm`. Collective.
/// @param out  the stream on which rank 0 shows progress; null: no progress.
/// @param log  writes the curve on rank 0 during the training; null: no files.
RunResult run_training(Comm& comm, const TrainMesh& mesh, const Options& options,
                       const RunPlan& plan, const Corpus& corpus, std::FILE* out,
                       const Place& place = {}, CurveLog* log = nullptr);

}  // namespace muonrt::train
