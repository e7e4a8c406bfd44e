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

/// One training run: an optimizer and a seed.
struct RunPlan {
  std::string optimizer;  // of Options::optimizers
  uint64_t seed = 1;
  double lr = 0.0;  // peak rate for the group of TrainOptimizer::lr; others keep their ratio
  int64_t later_steps = 0;  // of the following runs, for the remaining time
};

/// The result of a run; equal on every rank except for the fields of rank 0.
struct RunResult {
  Curve curve;
  double val_loss = 0.0;                                         // after the last step
  double train_loss = std::numeric_limits<double>::quiet_NaN();  // of the last step of this run
  double tokens_per_second = 0.0;                                // 0 if no step remained
  double optimizer_ms = 0.0;                                     // mean of a step
  double exposed_ms = 0.0;
  int64_t first_step = 0;  // steps before this run, from a checkpoint
  int64_t steps = 0;       // all steps, including those
  /// For each step of this run, the largest input of an attention softmax over the whole batch,
  /// with the weights before the step.
  std::vector<float> max_logits;
  int64_t clipped_heads = 0;      // by QK-clip, summed over these steps
  int64_t saved_param_bytes = 0;  // of the parameters in the last checkpoint
  bool interrupted = false;
  std::string warning;      // about a first step that moved a matrix far
  std::string health;       // rank 0: a line for each step with statistics
  std::string health_json;  // rank 0: the statistics as a JSON list
  std::string sample;       // rank 0
  std::string trace;        // rank 0, if asked for: the last steps of all ranks
  std::string plan;         // rank 0: the optimizer's plan
};

/// Asks all runs of this process to stop after the current step. Any thread may call it; the first
/// signal counts.
void request_stop(int signal);
/// The number of the signal that asked this process to stop; 0: none.
int stop_requested();

/// Trains on all ranks of `comm`. Collective.
/// @param out  where rank 0 shows progress; null: nowhere.
/// @param log  of rank 0: writes the curve while the run trains; null: no files.
RunResult run_training(Comm& comm, const TrainMesh& mesh, const Options& options,
                       const RunPlan& plan, const Corpus& corpus, std::FILE* out,
                       const Place& place = {}, CurveLog* log = nullptr);

}  // namespace muonrt::train
