#pragma once

#include <string>
#include <vector>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// The content of the report: the runs and their results.
struct Outcome {
  int ranks = 1;
  std::string mesh;
  std::vector<RunPlan> plans;
  std::vector<RunResult> results;  // results of the plans that were executed
};

/// Returns the text that the program prints at the end: a row for each optimizer, the comparison,
/// and the paths of the files.
std::string result_text(const Options& options, const Text& text, const Outcome& outcome);

/// Returns the same values as JSON.
std::string result_json(const Options& options, const Text& text, const Outcome& outcome);

}  // namespace muonrt::train
