#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command/plan/compare.hpp"
#include "muonrt/plan.h"

namespace muonrt {

struct MachineProfile;
struct Simulation;

namespace tool {

/// Returns the names of the machines that are built into the library, as text.
std::string machine_names();
/// Returns the JSON text of the machine with this name or in this file. Throws std::runtime_error.
std::string machine_text(const std::string& name_or_file);

/// The simulated time of a step on a machine.
struct MachineAnswer {
  /// A text such as "step 212 ms: products 74, exchange 190 of which 121 exposed, local 17; 41.2 of
  /// 80 GiB per rank: ...; fits". For the rank with the most work, products, exposed, local and
  /// launches add up to the time of the step.
  std::string headline;
  std::string note;    // the rank with the most work, and the number of simulated ranks
  std::string remedy;  // what to change; empty if the step fits in memory
  std::string json;
  std::string trace;  // all simulated ranks, in the format of muonrt_optimizer_get_trace()
  double seconds = 0;
  std::shared_ptr<const Simulation> step;
};

class Machine {
 public:
  /// @param text  the name of a built-in profile, or the path of a file.
  /// Throws std::runtime_error, or an error of the library that names the field.
  explicit Machine(const std::string& text);

  bool gpu() const;
  /// @param memory  the rank that needs the most memory.
  /// @param traces  whether to fill `trace`.
  MachineAnswer answer(const muonrt_plan_t* plan, const muonrt_plan_rank_t& memory,
                       bool traces) const;
  /// Returns only the time of a step, in seconds.
  double seconds(const muonrt_plan_t* plan) const;
  /// Returns a row for each strategy that other systems would use for this step.
  std::vector<ComparisonRow> compare(const muonrt_plan_t* plan, const MachineAnswer& answer) const;
  /// Returns the results as a row in a comparison of meshes.
  ComparisonRow row(const std::string& name, const muonrt_plan_t* plan, const MachineAnswer& answer,
                    const muonrt_plan_rank_t& memory) const;
  /// Returns a paragraph for each term of the headline.
  /// @param largest  the plan in which rank `memory` needs the most memory.
  std::string explain(const muonrt_plan_t* plan, const MachineAnswer& answer,
                      const muonrt_plan_t* largest, const muonrt_plan_rank_t& memory) const;

 private:
  std::shared_ptr<const MachineProfile> profile_;
};

}  // namespace tool
}  // namespace muonrt
