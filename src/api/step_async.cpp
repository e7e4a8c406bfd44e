#include "muonrt/step_async.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/read_settings.hpp"
#include "api/structs.hpp"
#include "optimizer/explain.hpp"

using namespace muonrt;
using api::as_status;

namespace {

muonrt_step_report_t to_c(const StepReport& r) {
  muonrt_step_report_t out;
  muonrt_step_report_init(&out);
  out.skipped = r.skipped;
  out.step = r.step;
  out.orthogonalized = r.orthogonalized;
  out.planned = r.planned;
  out.zero_matrices = r.zero_matrices;
  out.nonfinite_rank = r.nonfinite_rank;
  out.nonfinite_param = r.nonfinite_param;
  out.bytes_sent = r.bytes_sent;
  out.seconds = r.seconds;
  out.local_seconds = r.local_seconds;
  out.gemm_seconds = r.gemm_seconds;
  out.exchange_seconds = r.exchange_seconds;
  out.exposed_seconds = r.exposed_seconds;
  out.grad_norm = r.grad_norm;
  out.clipped_heads = r.clipped_heads;
  out.has_health = r.has_health;
  out.enqueue_seconds = r.enqueue_seconds;
  out.transport_overflow = r.transport_overflow;
  out.large_update_param = r.large_update.param;
  out.large_update_ratio = r.large_update.ratio;
  return out;
}

StepArgs read_args(const Optimizer& o, const muonrt_step_args_t* args) {
  return api::read_step(args, static_cast<int64_t>(o.settings().params.size()),
                        static_cast<int32_t>(o.settings().groups.size()));
}

/// Writes the report of a step that was committed or skipped. If the step was skipped, also sets
/// the last error message to the reason.
Status write_report(muonrt_step_report_t* report, const Optimizer& o, Status status,
                    const StepReport& done) {
  if (report) api::write_struct(report, to_c(done), "report");
  if (status == Status::kSkipped) {
    std::string why = "not finite";
    // If there is not enough memory for the whole text, the short text remains.
    capture_error([&] { why = describe_skip(o.settings(), done); });
    api::set_last_error(why.c_str());
  }
  return status;
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_optimizer_step(muonrt_step_report_t* report, muonrt_optimizer_t* optimizer,
                                      const muonrt_step_args_t* args) {
  return as_status([&] {
    Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_step");
    StepReport done;
    const Status status = o.step(
        [&] {
          if (report) api::struct_size_of(report, "report", sizeof *report);
          return read_args(o, args);
        },
        done);
    return write_report(report, o, status, done);
  });
}

muonrt_status_t muonrt_optimizer_step_async(muonrt_optimizer_t* optimizer,
                                            const muonrt_step_args_t* args) {
  return as_status([&] {
    Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_step_async");
    o.step_async([&] { return read_args(o, args); });
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_wait(muonrt_step_report_t* report, muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_wait");
    if (report) api::struct_size_of(report, "report", sizeof *report);
    StepReport done;
    const Status status = o.wait(done);
    return write_report(report, o, status, done);
  });
}

}  // extern "C"
