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

/// Fills the report of a skipped step with the source of the non-finite value: of all ranks'
/// sources the one that is nearest to the cause. Collective. Does not allocate.
/// @param own  the source that this rank found.
/// @param all  memory for the sources of all ranks.
void explain_skip(Comm& comm, const NonfiniteSource& own, std::vector<NonfiniteSource>& all,
                  StepReport& report);

/// The source of a non-finite value that this rank found in the step.
NonfiniteSource nonfinite_source(const Findings& findings, const ParamTables& tables,
                                 const OptimizerSettings& settings);

/// Describes a source that `rank` found, for a message.
std::string describe_nonfinite(const OptimizerSettings& settings, const NonfiniteSource& source,
                               int32_t rank);
/// Describes why a step was skipped, for a message.
std::string describe_skip(const OptimizerSettings& settings, const StepReport& skipped);

/// Returns the arguments of a step and the counts that must be equal on all ranks. If an allocation
/// fails, the table is marked as incomplete.
/// @param committed  committed steps before this one.
/// @param check      names what the step compares between replicas.
AgreementTable make_step_table(const OptimizerSettings& settings, const StepArgs& args,
                               const ParamTables& tables, const Findings& findings,
                               int64_t committed, const ConsistencyCheck& check) noexcept;

/// Returns the error of a rejected step, the same on every rank: the error of the lowest rank that
/// has one, else how the arguments differ, else the error that `find_other` returns. Collective.
/// Errors: those of the communicator.
Error explain_rejection(Comm& comm, const std::optional<Error>& own_error,
                        const AgreementTable& step_table,
                        FunctionRef<std::optional<Error>()> find_other);

}  // namespace muonrt
