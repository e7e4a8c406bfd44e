#pragma once

#include <optional>

#include "backend/comm.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/first_check.hpp"
#include "optimizer/report.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/tables.hpp"

namespace muonrt {

/// Who found what was not finite, in a step that was skipped. Collective.
/// @param mine  this rank's.
void explain_skip(Comm& comm, const OptimizerSettings& settings, const Tables& tables,
                  const Findings& mine, StepReport& report);

/// What this rank found that is not finite: "" where it found nothing.
std::string describe_findings(const OptimizerSettings& settings, const Tables& tables,
                              const Findings& mine, int32_t rank);

/// The arguments of a step, in which ranks may differ.
/// @param committed  steps so far.
/// @param check      what the step compares between replicas.
Fingerprint step_arguments(const OptimizerSettings& settings, const StepSettings& step,
                           const Tables& tables, const Findings& findings, int64_t committed,
                           const FirstCheck& check);

/// Of a step that was voted down: throws the error of the lowest rank that has one, else how the
/// arguments differ, else what `otherwise` throws; the same on every rank. Collective.
[[noreturn]] void explain_rejection(Comm& comm, const std::optional<Error>& mine,
                                    const Fingerprint& arguments,
                                    const std::function<void()>& otherwise);

}  // namespace muonrt
