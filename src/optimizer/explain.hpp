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

/// Stores the source of the non-finite value in the report of a skipped step. If the ranks found
/// multiple sources, chooses the one that is closest to the cause. Collective. Does not allocate.
/// @param own  Source that this rank found.
/// @param all  Memory for the sources of all ranks.
void explain_skip(Comm& comm, const NonfiniteSource& own, std::vector<NonfiniteSource>& all,
                  StepReport& report);

/// Returns the source of a non-finite value that this rank found in the step.
NonfiniteSource nonfinite_source(const Findings& findings, const ParamTables& tables,
                                 const OptimizerSettings& settings);

/// Returns text for a message that describes a source that `rank` found.
std::string describe_nonfinite(const OptimizerSettings& settings, const NonfiniteSource& source,
                               int32_t rank);
/// Returns text for a message that explains why a step was skipped.
std::string describe_skip(const OptimizerSettings& settings, const StepReport& skipped);

/// Returns the arguments and counts of a step that must be equal on all ranks. If an allocation
/// fails, the table is marked as incomplete.
/// @param committed  Number of committed steps before this one.
/// @param check      Describes what the step compares between replicas.
AgreementTable make_step_table(const OptimizerSettings& settings, const StepArgs& args,
                               const ParamTables& tables, const Findings& findings,
                               int64_t committed, const ConsistencyCheck& check) noexcept;

/// Returns the error of a rejected step. The error is the same on every rank. Uses the first of
/// these causes that exists: the error of the lowest rank that passes one, a mismatch between the
/// ranks' arguments, and the error that `find_other` returns. Collective.
/// Errors: any error of the communicator.
Error explain_rejection(Comm& comm, const std::optional<Error>& own_error,
                        const AgreementTable& step_table,
                        FunctionRef<std::optional<Error>()> find_other);

}  // namespace muonrt
