#pragma once

#include <string>
#include <utility>
#include <vector>

struct muonrt_plan;

namespace muonrt::tool {

/// One step of all ranks in milliseconds: the parts, then the kinds of spans.
struct StepParts {
  /// step: from the first begin to the last end of a span, over all ranks. The others are means
  /// over the ranks: products and local (the spans of the compute stream), exchange (those of the
  /// exchange stream), exposed (the rest of a rank's time), and each kind of span.
  std::vector<std::pair<std::string, double>> ms;
};

/// @param trace  a Chrome trace of one step of all ranks on one clock, measured or modelled.
StepParts step_parts(const std::string& trace);

/// The parts that the model of a host or GPU predicts for a plan.
/// @param machine  its name, or a file. @param ranks  those that share the host.
/// @param threads  of a rank; 0: its part of the cores.
StepParts modelled_parts(const muonrt_plan* plan, const std::string& machine, int ranks,
                         int threads);

/// A table of measured steps of one plan next to a modelled one, as text and as a JSON list:
/// medians, the parts of the fastest step, which other work has disturbed least, and the ratios of
/// the modelled parts to both.
struct PartsTable {
  std::string text, json;
};
/// @param measured  at least one step.
PartsTable compare_parts(const std::vector<StepParts>& measured, const StepParts& modelled);

/// The tables of all rows of a benchmark, and the items of a JSON list.
struct PartsReport {
  std::string text, json;
  void add(const std::string& shape, const std::string& strategy, const std::string& machine,
           const PartsTable& parts);
};

}  // namespace muonrt::tool
