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

/// Medians over several steps of one plan. @param steps  at least one.
StepParts median_parts(const std::vector<StepParts>& steps);

/// A measured step next to a modelled one: rows as a table, and as a JSON list.
struct PartsTable {
  std::string text, json;
};
PartsTable compare_parts(const StepParts& measured, const StepParts& modelled);

}  // namespace muonrt::tool
