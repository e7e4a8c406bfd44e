#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/function_ref.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/consistency_check.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/step_report.hpp"

namespace muonrt {

/// Who found what was not finite, in a step that was skipped. Collective. Takes no memory.
/// @param mine  this rank's.
/// @param all   room for every rank's.
void explain_skip(Comm& comm, const NonfiniteSource& mine, std::vector<NonfiniteSource>& all,
                  StepReport& report);

/// What this rank found.
NonfiniteSource nonfinite_source(const Findings& findings, const ParamTables& tables,
                                 const OptimizerSettings& settings);

/// In words, for people.
std::string words_of(const OptimizerSettings& settings, const NonfiniteSource& found, int32_t rank);
/// Why a step was skipped.
std::string words_of(const OptimizerSettings& settings, const StepReport& skipped);

/// The arguments of a step, in which ranks may differ.
/// @param committed  steps so far.
/// @param check      what the step compares between replicas.
/// @return  a table that was cut where there is no memory for it.
AgreementTable make_step_table(const OptimizerSettings& settings, const StepArgs& step,
                               const ParamTables& tables, const Findings& findings,
                               int64_t committed, const ConsistencyCheck& check) noexcept;

/// Of a step that was voted down: the error of the lowest rank that has one, else how the arguments
/// differ, else what `otherwise` finds; the same on every rank. Collective. Throws what the
/// communicator does.
Error explain_rejection(Comm& comm, const std::optional<Error>& mine,
                        const AgreementTable& arguments,
                        FunctionRef<std::optional<Error>()> otherwise);

}  // namespace muonrt
