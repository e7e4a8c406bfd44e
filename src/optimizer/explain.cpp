#include "optimizer/explain.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "optimizer/settings/describe.hpp"

namespace muonrt {

NonfiniteSource nonfinite_source(const Findings& findings, const ParamTables& tables,
                                 const OptimizerSettings& settings) {
  if (!findings.nonfinite) return {};
  if (findings.first_param < 0) return {NonfiniteSource::kUpdate, -1, 0};
  const int64_t param = tables.param_of(findings.first_param);
  const bool own = findings.first_param < std::ssize(settings.params);
  return {own ? NonfiniteSource::kGradient : NonfiniteSource::kSum, param,
          param != tables.param_of(findings.first_in_f32)};
}

std::string describe_nonfinite(const OptimizerSettings& settings, const NonfiniteSource& source,
                               int32_t rank) {
  const std::string by = cat(" (found by rank ", rank, ")");
  if (source.kind == NonfiniteSource::kNothing) return "nothing";
  if (source.param < 0)
    return cat("an update overflowed, a logit or factor is not finite, or found_inf is set", by);
  const std::string& name = settings.params[static_cast<size_t>(source.param)].name;
  if (!source.overflowed)
    return cat("param '", name, "': a gradient, state or update is not finite", by);
  return cat("param '", name, "': its gradient and momentum are finite, but their direction ",
             "overflows transport_dtype ", name_of(settings.transport_dtype), by,
             "; scale gradients down, or set transport_dtype to f32");
}

std::string describe_skip(const OptimizerSettings& settings, const StepReport& skipped) {
  const NonfiniteSource source{NonfiniteSource::kUpdate, skipped.nonfinite_param,
                               skipped.transport_overflow};
  return describe_nonfinite(settings, source, skipped.nonfinite_rank);
}

void explain_skip(Comm& comm, const NonfiniteSource& own, std::vector<NonfiniteSource>& all,
                  StepReport& report) {
  comm.allgather(&own, all.data(), sizeof own);
  const auto nearest = std::min_element(
      all.begin(), all.end(), [](const NonfiniteSource& a, const NonfiniteSource& b) {
        return std::pair(a.kind, a.overflowed) < std::pair(b.kind, b.overflowed);
      });
  report.nonfinite_rank = static_cast<int32_t>(nearest - all.begin());
  report.nonfinite_param = nearest->param;
  report.transport_overflow = nearest->overflowed != 0;
}

namespace {

void add_arguments(AgreementTable& table, const OptimizerSettings& settings, const StepArgs& args,
                   const ParamTables& tables, const Findings& findings, int64_t committed,
                   const ConsistencyCheck& check) {
  table.add("step: number of committed steps", cat(committed));
  for (size_t g = 0; g < settings.groups.size(); ++g)
    table.add(cat("step: lr of group ", g), cat(args.lr_of(static_cast<int64_t>(g))));
  table.add("step: grad_scale_inv", cat(args.grad_scale_inv));
  const auto factor = static_cast<uint32_t>(findings.factor);
  const auto host = std::bit_cast<uint32_t>(static_cast<float>(args.grad_scale_inv));
  table.add("step: factor of the gradients (device_grad_scale_inv, grad_multiplier)",
            cat(double{std::bit_cast<float>(factor ^ host)}));
  for (size_t i = 0; i < settings.params.size(); ++i) {
    const std::string who = cat("step: param '", settings.params[i].name, "'");
    table.add(who + ": active", cat(tables.params()[i].active));
    table.add(who + ": update count", cat(tables.updates(static_cast<int64_t>(i))));
  }
  for (size_t i = 0; i < settings.groups.size(); ++i)
    describe_scalars(table, cat("group ", i), settings.groups[i]);
  // These entries come last, because their differences may be caused by a difference in an entry
  // above.
  for (size_t i = 0; i < settings.params.size(); ++i)
    table.add(cat("step: param '", settings.params[i].name,
                  "': replica check (call muonrt_optimizer_reset_masters, _set_step and "
                  "_set_update_count on every rank)"),
              check.described(static_cast<int64_t>(i)));
}

}  // namespace

AgreementTable make_step_table(const OptimizerSettings& settings, const StepArgs& args,
                               const ParamTables& tables, const Findings& findings,
                               int64_t committed, const ConsistencyCheck& check) noexcept {
  AgreementTable table;
  if (capture_error(
          [&] { add_arguments(table, settings, args, tables, findings, committed, check); }))
    table.mark_incomplete();
  return table;
}

Error explain_rejection(Comm& comm, const std::optional<Error>& own_error,
                        const AgreementTable& step_table,
                        FunctionRef<std::optional<Error>()> find_other) {
  if (const auto error = find_common_error(comm, own_error)) return *error;
  // No rank has an invalid argument, so the ranks have different arguments or different replicas.
  if (const auto error = step_table.find_mismatch(comm)) return *error;
  if (const auto error = find_other()) return *error;
  return make_error(Status::kInternal, "internal: a step was rejected without a reason");
}

}  // namespace muonrt
