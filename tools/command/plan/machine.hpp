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

/// Of the machines that are built into the library.
std::string machine_names();
/// The JSON text of a machine, by its name or the path of a file. Throws std::runtime_error.
std::string machine_text(const std::string& name_or_file);

/// The time of a step on a machine.
struct MachineAnswer {
  /// "step 212 ms: products 74, exchange 190 of which 121 exposed, local 17; 41.2 of 80 GiB per
  /// rank: ...; fits". Products, exposed, local and launches add up to the step of the rank with
  /// the most work.
  std::string headline;
  std::string note;    // which rank, of how many that were simulated
  std::string remedy;  // if the memory is not enough: what would help
  std::string json;
  std::string trace;  // as that of muonrt_optimizer_get_trace(), for all simulated ranks
  double seconds = 0;
  std::shared_ptr<const Simulation> step;
};

class Machine {
 public:
  /// @param text  the name of a built-in profile, or the path of a file.
  /// Throws std::runtime_error, or an error of the library that names the field.
  explicit Machine(const std::string& text);

  bool gpu() const;
  /// @param memory  the rank that needs the most.
  /// @param traces  whether to fill `trace`.
  MachineAnswer answer(const muonrt_plan_t* plan, const muonrt_plan_rank_t& memory,
                       bool traces) const;
  /// The seconds of a step only.
  double seconds(const muonrt_plan_t* plan) const;
  /// The same step as other systems would run it.
  std::vector<ComparisonRow> compare(const muonrt_plan_t* plan, const MachineAnswer& answer) const;
  /// The answer as a row of a comparison of meshes.
  ComparisonRow row(const std::string& name, const muonrt_plan_t* plan, const MachineAnswer& answer,
                    const muonrt_plan_rank_t& memory) const;
  /// A paragraph for each term of the headline.
  /// @param largest  the plan whose rank `memory` needs the most.
  std::string explain(const muonrt_plan_t* plan, const MachineAnswer& answer,
                      const muonrt_plan_t* largest, const muonrt_plan_rank_t& memory) const;

 private:
  std::shared_ptr<const MachineProfile> profile_;
};

}  // namespace tool
}  // namespace muonrt
