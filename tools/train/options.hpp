#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config.hpp"

namespace muonrt::train {

/// Arguments of `muonrt train`.
struct Options {
  std::string optimizer = "both";  // names or files, separated by commas; both: muon,adamw
  std::string preset = "small";
  int64_t steps = 300;
  int64_t batch = 32;  // sequences in a step, of all ranks together
  uint64_t seed = 1;
  std::string mesh;  // "dp=2,fsdp=2"; empty: chosen from the number of ranks
  std::string data;  // text file; empty: the King James text
  std::string out;   // folder; empty: no files are written
  std::string save;  // folder for checkpoints; empty: none
  int64_t save_every = 100;
  bool overwrite = false;  // replace a checkpoint in `save`
  std::string resume;      // folder of the checkpoint to continue from; empty: start a new run
  std::string trace;       // file for the last steps of the first optimizer; empty: none
  std::string timeline;    // file for a picture of the last step; empty: none
  bool json = false;
  std::vector<double>
      lr;                // peak rates: one for each optimizer or one for all; empty: from the files
  double qk_clip = 0.0;  // threshold for the attention logits; 0: from the optimizers
  double warmup = 0.05;  // share of the steps
  double final_lr = 0.1;  // share of the peak at the last step
  int64_t eval_every = 20;
  int64_t eval_windows = 128;  // of the validation text
  int64_t sample_bytes = 300;

  bool traces() const { return !trace.empty() || !timeline.empty(); }
  /// The names in `optimizer`.
  std::vector<std::string> optimizers() const;
};

/// Throws std::runtime_error with the option, its value and the allowed values.
void check_options(const Options& options);

}  // namespace muonrt::train
