#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config.hpp"

namespace muonrt::train {

/// The arguments of `muonrt train`.
struct Options {
  std::string optimizer = "both";  // names or files, separated by commas; "both": muon,adamw
  std::string preset = "small";
  int64_t steps = 300;
  int64_t batch = 32;  // number of sequences per step, on all ranks together
  uint64_t seed = 1;
  std::string mesh;  // such as "dp=2,fsdp=2"; if empty, depends on the number of ranks
  std::string data;  // text file; if empty, the King James text
  std::string out;   // output folder; if empty, no files are written
  std::string save;  // folder for checkpoints; if empty, none are saved
  int64_t save_every = 100;
  bool overwrite = false;  // replace a checkpoint in `save`
  std::string resume;      // folder of the checkpoint to continue from; if empty, a new run starts
  std::string trace;       // file for the last steps of the first optimizer, if not empty
  std::string timeline;    // file for a picture of the last step, if not empty
  bool json = false;
  std::vector<double> lr;  // peak learning rates: one per optimizer, or one; empty: from the files
  double qk_clip = 0.0;    // threshold of the attention logits; 0: from the opt.json
  double warmup = 0.05;    // as a share of the steps
  double final_lr = 0.1;   // learning rate in the last step, as a share of the peak
  int64_t eval_every = 20;
  int64_t eval_windows = 128;  // number of windows of the validation text

  bool traces() const { return !trace.empty() || !timeline.empty(); }
  /// Returns the names in `optimizer`.
  std::vector<std::string> optimizers() const;
};

/// Throws a std::runtime_error that states the option, its value and the allowed values.
void check_options(const Options& options);

}  // namespace muonrt::train
