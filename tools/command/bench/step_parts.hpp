#pragma once

#include <string>
#include <utility>
#include <vector>

struct muonrt_plan;

namespace muonrt::tool {

/// The times of one step over all ranks in milliseconds: first the parts of the step, and then each
/// kind of span.
struct StepParts {
  /// `step` is the time from the start of the first span to the end of the last span, over all
  /// ranks. The other times are means over the ranks: `products` and `local` (spans of the compute
  /// stream), `exchange` (spans of the exchange stream), `exposed` (the rest of a rank's time), and
  /// each kind of span.
  std::vector<std::pair<std::string, double>> ms;
};

/// @param trace  a Chrome trace of one measured or modelled step, with the spans of all ranks on a
/// common clock.
StepParts step_parts(const std::string& trace);

/// Returns the parts that the model of a host or GPU predicts for a plan.
/// @param machine  a name or a file.
/// @param ranks    the number of ranks that share the host.
/// @param threads  the number of threads of each rank; if 0, its share of the cores.
StepParts modelled_parts(const muonrt_plan* plan, const std::string& machine, int ranks,
                         int threads);

/// A table, as text and as a JSON list, that compares measured steps of one plan with a modelled
/// step. It contains the medians over the steps, the parts of the fastest step (the one that other
/// work has disturbed least), and the ratios of the modelled parts to both.
struct PartsTable {
  std::string text, json;
};
/// @param measured  at least one step.
PartsTable compare_parts(const std::vector<StepParts>& measured, const StepParts& modelled);

/// The tables of all rows of a benchmark, as text and as items of a JSON list.
struct PartsReport {
  std::string text, json;
  void add(const std::string& shape, const std::string& strategy, const std::string& machine,
           const PartsTable& parts);
};

}  // namespace muonrt::tool
