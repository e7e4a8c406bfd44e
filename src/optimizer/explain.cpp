#include "optimizer/explain.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "optimizer/settings/describe.hpp"

namespace muonrt {

Found found_in(const Findings& findings, const Tables& tables, const OptimizerSettings& settings) {
  if (!findings.nonfinite) return {};
  if (findings.first_param < 0) return {Found::kUpdate, -1, 0};
  const int64_t param = tables.param_of(findings.first_param);
  const bool own = findings.first_param < std::ssize(settings.params);
  return {own ? Found::kGradient : Found::kSum, param,
          param != tables.param_of(findings.first_in_f32)};
}

std::string words_of(const OptimizerSettings& settings, const Found& found, int32_t rank) {
  const std::string by = cat(" (found by rank ", rank, ")");
  if (found.what == Found::kNothing) return "nothing";
  if (found.param < 0)
    return cat("an update overflowed, a logit or factor is not finite, or found_inf is set", by);
  const std::string& name = settings.params[static_cast<size_t>(found.param)].name;
  if (!found.overflowed)
    return cat("param '", name, "': a gradient, state or update is not finite", by);
  return cat("param '", name, "': its gradient and momentum are finite, but their direction ",
             "overflows transport_dtype ", name_of(settings.transport), by,
             "; scale gradients down, or set transport_dtype to f32");
}

std::string words_of(const OptimizerSettings& settings, const StepReport& skipped) {
  const Found found{Found::kUpdate, skipped.nonfinite_param, skipped.transport_overflow};
  return words_of(settings, found, skipped.nonfinite_rank);
}

void explain_skip(Comm& comm, const Found& mine, std::vector<Found>& all, StepReport& report) {
  comm.allgather(&mine, all.data(), sizeof mine);
  const auto least = std::min_element(all.begin(), all.end(), [](const Found& a, const Found& b) {
    return std::pair(a.what, a.overflowed) < std::pair(b.what, b.overflowed);
  });
  report.nonfinite_rank = static_cast<int32_t>(least - all.begin());
  report.nonfinite_param = least->param;
  report.transport_overflow = least->overflowed != 0;
}

namespace {

void add_arguments(Fingerprint& table, const OptimizerSettings& settings, const StepSettings& step,
                   const Tables& tables, const Findings& findings, int64_t committed,
                   const FirstCheck& check) {
  table.add("step: number of committed steps", cat(committed));
  for (size_t g = 0; g < settings.groups.size(); ++g)
    table.add(cat("step: lr of group ", g), cat(step.lr_of(static_cast<int64_t>(g))));
  table.add("step: grad_scale_inv", cat(step.grad_scale_inv));
  const auto seen = static_cast<uint32_t>(findings.factor);
  const auto host = std::bit_cast<uint32_t>(static_cast<float>(step.grad_scale_inv));
  table.add("step: factor of the gradients (device_grad_scale_inv, grad_multiplier)",
            cat(double{std::bit_cast<float>(seen ^ host)}));
  for (size_t i = 0; i < settings.params.size(); ++i) {
    const std::string who = cat("step: param '", settings.params[i].name, "'");
    table.add(who + " takes part", cat(tables.params()[i].active));
    table.add(who + " has had updates", cat(tables.updates(static_cast<int64_t>(i))));
  }
  for (size_t i = 0; i < settings.groups.size(); ++i)
    describe_scalars(table, cat("group ", i), settings.groups[i]);
  // Last: what differs above may be why this does.
  for (size_t i = 0; i < settings.params.size(); ++i)
    table.add(cat("step: param '", settings.params[i].name,
                  "' compares with its replicas (call muonrt_optimizer_take_params, _set_step and "
                  "_set_updates on every rank)"),
              check.described(static_cast<int64_t>(i)));
}

}  // namespace

Fingerprint step_arguments(const OptimizerSettings& settings, const StepSettings& step,
                           const Tables& tables, const Findings& findings, int64_t committed,
                           const FirstCheck& check) noexcept {
  Fingerprint table;
  if (error_of([&] { add_arguments(table, settings, step, tables, findings, committed, check); }))
    table.cut();
  return table;
}

Error explain_rejection(Comm& comm, const std::optional<Error>& mine, const Fingerprint& arguments,
                        FunctionRef<std::optional<Error>()> otherwise) {
  if (const auto error = agreed(comm, mine)) return *error;
  // Nobody's arguments were bad, so they differ, or what replicas hold does.
  if (const auto error = arguments.difference(comm)) return *error;
  if (const auto error = otherwise()) return *error;
  return make_error(Status::kInternal, "internal: a step was voted down without a reason");
}

}  // namespace muonrt
