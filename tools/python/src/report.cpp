#include "binding.hpp"

namespace binding {

nb::dict counters(const muonrt_optimizer_t* optimizer) {
  auto c = muonrt::detail::filled(muonrt_counters_init_sized);
  check(muonrt_optimizer_get_counters(&c, optimizer));
  nb::dict out;
  out["chunks_resident_peak"] = c.chunks_resident_peak;
  out["allocations"] = c.allocations;
  out["allocated_bytes"] = c.allocated_bytes;
  out["objects"] = c.objects;
  out["exchanges"] = c.exchanges;
  out["bytes_sent"] = c.bytes_sent;
  out["orthogonalized"] = c.orthogonalized;
  out["saved_bytes"] = c.saved_bytes;
  out["saved_param_bytes"] = c.saved_param_bytes;
  out["threads"] = c.threads;
  return out;
}

nb::dict memory(const muonrt_optimizer_t* optimizer) {
  auto m = muonrt::detail::filled(muonrt_memory_init_sized);
  check(muonrt_optimizer_get_memory(&m, optimizer));
  nb::dict out;
  out["message_bytes"] = m.message_bytes;
  out["staged_bytes"] = m.staged_bytes;
  out["scratch_bytes"] = m.scratch_bytes;
  out["block_message_bytes"] = m.block_message_bytes;
  out["block_staged_bytes"] = m.block_staged_bytes;
  out["block_scratch_bytes"] = m.block_scratch_bytes;
  out["check_bytes"] = m.check_bytes;
  out["state_bytes"] = m.state_bytes;
  out["allocated_bytes"] = m.allocated_bytes;
  out["save_bytes"] = m.save_bytes;
  return out;
}

namespace {

nb::dict matrix_health(const muonrt_matrix_health_t& m, const std::vector<std::string>& names) {
  nb::dict out;
  out["param"] = names[static_cast<size_t>(m.param)];
  out["index"] = m.index;
  out["updated"] = m.updated != 0;
  out["shape"] = nb::make_tuple(m.rows, m.cols);
  out["update_rms"] = m.update_rms;
  out["weight_rms"] = m.weight_rms;
  out["sigma_min"] = m.sigma_min;
  out["sigma_max"] = m.sigma_max;
  out["deviation"] = m.deviation;
  out["largest_q"] = m.largest_q;
  out["nonfinite"] = m.nonfinite;
  return out;
}

}  // namespace

nb::dict health(const muonrt_optimizer_t* optimizer, const std::vector<std::string>& names) {
  auto summary = muonrt::detail::filled(muonrt_health_init_sized);
  check(muonrt_optimizer_get_health(&summary, nullptr, 0, optimizer));
  std::vector<muonrt_matrix_health_t> matrices(
      static_cast<size_t>(summary.matrices),
      muonrt::detail::filled(muonrt_matrix_health_init_sized));
  check(muonrt_optimizer_get_health(&summary, matrices.data(), summary.matrices, optimizer));
  nb::list list;
  for (const auto& m : matrices) list.append(matrix_health(m, names));
  nb::dict out;
  out["step"] = summary.step;
  out["skipped"] = summary.skipped != 0;
  if (summary.replica_param >= 0) {
    out["replica_param"] = names[static_cast<size_t>(summary.replica_param)];
    out["replica_rank"] = summary.replica_rank;
    out["replica_reference"] = summary.replica_reference;
  }
  out["matrices"] = list;
  return out;
}

void bind_report(nb::module_& module) {
  nb::class_<StepReport> report(
      module, "StepReport",
      "Report of a step. All times are in seconds. Times and ``bytes_sent`` are those of this\n"
      "rank.");
  const auto field = [&](const char* name, auto member) {
    report.def_prop_ro(name, [member](const StepReport& r) { return r.c.*member; });
  };
  report.def_prop_ro(
      "skipped", [](const StepReport& r) { return r.c.skipped != 0; },
      "True if all ranks have skipped the step, for example because a gradient is not finite.\n"
      "Nothing has changed in this case.");
  report.def_prop_ro(
      "has_health", [](const StepReport& r) { return r.c.has_health != 0; },
      "True if this step collected statistics; see Optimizer.health().");
  field("step", &muonrt_step_report_t::step);
  field("orthogonalized", &muonrt_step_report_t::orthogonalized);
  field("planned", &muonrt_step_report_t::planned);
  field("zero_matrices", &muonrt_step_report_t::zero_matrices);
  field("nonfinite_rank", &muonrt_step_report_t::nonfinite_rank);
  field("nonfinite_param", &muonrt_step_report_t::nonfinite_param);
  field("transport_overflow", &muonrt_step_report_t::transport_overflow);
  field("bytes_sent", &muonrt_step_report_t::bytes_sent);
  field("seconds", &muonrt_step_report_t::seconds);
  field("local_seconds", &muonrt_step_report_t::local_seconds);
  field("gemm_seconds", &muonrt_step_report_t::gemm_seconds);
  field("exchange_seconds", &muonrt_step_report_t::exchange_seconds);
  field("exposed_seconds", &muonrt_step_report_t::exposed_seconds);
  field("grad_norm", &muonrt_step_report_t::grad_norm);
  field("clipped_heads", &muonrt_step_report_t::clipped_heads);
  field("large_update_param", &muonrt_step_report_t::large_update_param);
  field("large_update_ratio", &muonrt_step_report_t::large_update_ratio);
  report.def("__repr__", [](const StepReport& r) {
    return cat("StepReport(step=", r.c.step, ", skipped=", r.c.skipped != 0 ? "True" : "False",
               ", seconds=", r.c.seconds, ")");
  });
}

}  // namespace binding
