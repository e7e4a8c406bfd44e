#include "binding.hpp"

namespace binding {

nb::dict counters(const muonrt_optimizer_t* optimizer) {
  auto c = muonrt::detail::filled(muonrt_counters_init_sized);
  check(muonrt_optimizer_get_counters(optimizer, &c));
  nb::dict out;
  out["chunks_resident_peak"] = c.chunks_resident_peak;
  out["allocations"] = c.allocations;
  out["allocated_bytes"] = c.allocated_bytes;
  out["objects"] = c.objects;
  out["exchanges"] = c.exchanges;
  out["bytes_sent"] = c.bytes_sent;
  out["orthogonalized"] = c.orthogonalized;
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
  check(muonrt_optimizer_get_health(optimizer, &summary, nullptr, 0));
  std::vector<muonrt_matrix_health_t> matrices(
      static_cast<size_t>(summary.matrices),
      muonrt::detail::filled(muonrt_matrix_health_init_sized));
  check(muonrt_optimizer_get_health(optimizer, &summary, matrices.data(), summary.matrices));
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
  nb::class_<Report> report(module, "Report", "What a step did; times in seconds, of this rank");
  const auto field = [&](const char* name, auto member) {
    report.def_prop_ro(name, [member](const Report& r) { return r.c.*member; });
  };
  report.def_prop_ro(
      "skipped", [](const Report& r) { return r.c.skipped != 0; },
      "Voted down: a gradient was not finite on some rank, nothing has changed");
  report.def_prop_ro("measured", [](const Report& r) { return r.c.health != 0; });
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
  report.def("__repr__", [](const Report& r) {
    return cat("Report(step=", r.c.step, ", skipped=", r.c.skipped != 0 ? "True" : "False",
               ", seconds=", r.c.seconds, ")");
  });
}

}  // namespace binding
