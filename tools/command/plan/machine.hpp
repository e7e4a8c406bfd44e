#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muonrt/plan.h"

namespace muonrt {

struct MachineProfile;

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
  std::string note;  // which rank, of how many that were simulated
  std::string json;
  std::string trace;  // as that of muonrt_optimizer_get_trace(), for all simulated ranks
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

 private:
  std::shared_ptr<const MachineProfile> profile_;
};

}  // namespace tool
}  // namespace muonrt
