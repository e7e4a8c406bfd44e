#pragma once

#include <optional>
#include <vector>

#include "backend/comm.hpp"
#include "base/function_ref.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/first_check.hpp"
#include "optimizer/report.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/tables.hpp"

namespace muonrt {

/// Who found what was not finite, in a step that was skipped. Collective. Without memory the report
/// has no reason, all else stays.
/// @param mine  this rank's.
/// @param all   room for every rank's.
void explain_skip(Comm& comm, const OptimizerSettings& settings, const Tables& tables,
                  const Findings& mine, std::vector<Found>& all, StepReport& report);

/// What this rank found that is not finite: "nothing", or the reason.
std::string describe_findings(const OptimizerSettings& settings, const Tables& tables,
                              const Findings& mine, int32_t rank);

/// The arguments of a step, in which ranks may differ.
/// @param committed  steps so far.
/// @param check      what the step compares between replicas.
/// @return  a table that was cut where there is no memory for it.
Fingerprint step_arguments(const OptimizerSettings& settings, const StepSettings& step,
                           const Tables& tables, const Findings& findings, int64_t committed,
                           const FirstCheck& check) noexcept;

/// Of a step that was voted down: the error of the lowest rank that has one, else how the arguments
/// differ, else what `otherwise` finds; the same on every rank. Collective. Throws what the
/// communicator does.
Error explain_rejection(Comm& comm, const std::optional<Error>& mine, const Fingerprint& arguments,
                        FunctionRef<std::optional<Error>()> otherwise);

}  // namespace muonrt
