#include "optimizer/explain.hpp"

#include <bit>

#include "optimizer/settings/describe.hpp"

namespace muonrt {

void explain_skip(Comm& comm, const Findings& mine, std::vector<Findings>& all,
                  StepReport& report) {
  comm.allgather(&mine, all.data(), sizeof mine);
  // An owner finds what its peers have sent it; the rank where it came from names the parameter.
  for (size_t r = 0; r < all.size(); ++r) {
    const bool first = report.nonfinite_rank < 0;
    const bool names = all[r].first_param >= 0 && report.nonfinite_param < 0;
    if (!all[r].nonfinite || !(first || names)) continue;
    report.nonfinite_rank = static_cast<int32_t>(r);
    report.nonfinite_param = all[r].first_param;
  }
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
    table.add(cat("step: param '", settings.params[i].name, "' compares with its replicas"),
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
