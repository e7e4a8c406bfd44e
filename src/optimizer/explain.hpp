#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/function_ref.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/first_check.hpp"
#include "optimizer/report.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/tables.hpp"

namespace muonrt {

/// Who found what was not finite, in a step that was skipped. Collective. Takes no memory.
/// @param mine  this rank's.
/// @param all   room for every rank's.
void explain_skip(Comm& comm, const Found& mine, std::vector<Found>& all, StepReport& report);

/// What this rank found.
Found found_in(const Findings& findings, const Tables& tables, const OptimizerSettings& settings);

/// In words, for people.
std::string words_of(const OptimizerSettings& settings, const Found& found, int32_t rank);
/// Why a step was skipped.
std::string words_of(const OptimizerSettings& settings, const StepReport& skipped);

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
