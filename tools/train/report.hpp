#pragma once

#include <string>
#include <vector>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// Everything the result is made from.
struct Outcome {
  int ranks = 1;
  std::string mesh;
  std::vector<RunPlan> plans;
  std::vector<RunResult> results;  // of the plans that ran
};

/// The last lines of the program: a row for each optimizer, the comparison, where the files lie, a
/// sample of text.
std::string result_text(const Options& options, const Text& text, const Outcome& outcome);

/// The same facts for a program.
std::string result_json(const Options& options, const Text& text, const Outcome& outcome);

}  // namespace muonrt::train
