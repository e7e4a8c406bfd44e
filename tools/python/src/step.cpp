#include <cmath>
#include <cstdio>
#include <utility>

#include "optimizer.hpp"

namespace binding {

namespace {

/// Prints a warning if the first step has changed a parameter by a large amount.
/// @param lr  the learning rate of the parameter's group in this step.
void warn_of_large_update(const muonrt_step_report_t& report, const std::string& name, double lr) {
  const double ratio = report.large_update_ratio;
  char numbers[160];
  // The update is proportional to the learning rate, so a smaller rate can be computed.
  std::snprintf(numbers, sizeof numbers,
                "%ld%% of its RMS, which is above 5%%; use a smaller learning rate instead of %g, "
                "such as %.2g, which moves it by about 1%%",
                std::lround(ratio * 100), lr, lr * 0.01 / ratio);
  const std::string text = cat("param '", name, "': the first step moves it by ", numbers);
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw nb::python_error();
}

}  // namespace

/// Returns the address of an array with one element, which the step reads on the device. If
/// `object` is not an array, returns NULL.
const float* Optimizer::take_scalar(const char* what, nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return nullptr;
  Array array = take_array(what, object, "float32", false);
  if (array.held.size() != 1)
    refuse(kInvalidArg, cat(what, " has shape ", shape_text(array.shape), "; pass one element"));
  require_place(what, array, place_, "the optimizer");
  held_->scalars.push_back(array);
  return static_cast<const float*>(array.data);
}

/// Sets the arguments that may be arrays, and stores these arrays in `held_` to keep them alive.
void Optimizer::take_scalars(muonrt_step_args_t& args, nb::handle grad_scale_inv,
                             nb::handle found_inf, nb::handle qk_logits) {
  static const float found = 1.0f;
  args.device_grad_scale_inv = take_scalar("grad_scale_inv", grad_scale_inv);
  if (!args.device_grad_scale_inv && !nb::try_cast(grad_scale_inv, args.grad_scale_inv))
    refuse(kInvalidArg, cat("grad_scale_inv is ", nb::repr(grad_scale_inv).c_str(),
                            "; pass a number, or a float32 array of one element"));
  args.found_inf = take_scalar("found_inf", found_inf);
  if (!args.found_inf && is_true(found_inf)) {
    if (place_.on_cuda())
      refuse(kInvalidArg, cat("found_inf is ", nb::repr(found_inf).c_str(),
                              "; pass a float32 array of one element on ", place_.text()));
    args.found_inf = &found;
  }
  if (qk_logits.is_none()) return;
  const Array logits = take_array("qk_logits", qk_logits, "float32", false);
  require_place("qk_logits", logits, place_, "the optimizer");
  args.qk_logits = static_cast<const float*>(logits.data);
  args.n_qk_logits = static_cast<int64_t>(logits.held.size());
  held_->scalars.push_back(logits);
}

void Optimizer::begin_step(const StepCall& call, const Rates& lr,
                           const std::vector<int64_t>& inactive_params, nb::handle grad_scale_inv,
                           nb::handle found_inf, std::optional<uintptr_t> stream,
                           nb::handle qk_logits) {
  muonrt_optimizer_t* optimizer = get();
  const std::shared_ptr<Held> held = held_;
  // Keep the old arrays, too, because the call may first complete an earlier step that reads them.
  const std::vector<Array> earlier = std::exchange(held->scalars, {});
  rates_ = lr;
  muonrt_step_args_t args = muonrt::step_args();
  if (const auto* rates = std::get_if<std::vector<double>>(&lr)) {
    args.group_lrs = rates->data();
    args.n_group_lrs = static_cast<int32_t>(rates->size());
  } else {
    args.lr = std::get<double>(lr);
  }
  args.inactive_params = inactive_params.data();
  args.n_inactive_params = static_cast<int64_t>(inactive_params.size());
  args.stream = reinterpret_cast<void*>(stream.value_or(0));
  try {
    take_scalars(args, grad_scale_inv, found_inf, qk_logits);
  } catch (...) {
    // Without arguments, this rank votes to reject the step, so that the peers return an error
    // immediately.
    collective(held->comm.get(), [&] {
      call(optimizer, nullptr);
      return MUONRT_OK;
    });
    throw;
  }
  with_cause(held->functions.get(),
             [&] { collective(held->comm.get(), [&] { return call(optimizer, &args); }); });
}

StepReport Optimizer::end_step(StepReport report) {
  held_->scalars.clear();
  int32_t rank = 0;
  check(muonrt_comm_get_rank(&rank, held_->comm.get()));
  if (report.c.large_update_param >= 0 && rank == 0) {
    const auto param = static_cast<size_t>(report.c.large_update_param);
    const auto* const rates = std::get_if<std::vector<double>>(&rates_);
    warn_of_large_update(
        report.c, names[param],
        rates ? (*rates)[static_cast<size_t>(group_of_[param])] : std::get<double>(rates_));
  }
  return report;
}

StepReport Optimizer::step(const Rates& lr, const std::vector<int64_t>& inactive_params,
                           nb::object grad_scale_inv, nb::object found_inf,
                           std::optional<uintptr_t> stream, nb::object qk_logits) {
  Busy busy(busy_, "the optimizer");
  StepReport report{muonrt::detail::filled(muonrt_step_report_init_sized)};
  const auto call = [&](muonrt_optimizer_t* optimizer, const muonrt_step_args_t* args) {
    return muonrt_optimizer_step(&report.c, optimizer, args);
  };
  begin_step(call, lr, inactive_params, grad_scale_inv, found_inf, stream, qk_logits);
  return end_step(report);
}

void Optimizer::step_async(const Rates& lr, const std::vector<int64_t>& inactive_params,
                           nb::object grad_scale_inv, nb::object found_inf,
                           std::optional<uintptr_t> stream, nb::object qk_logits) {
  Busy busy(busy_, "the optimizer");
  begin_step(muonrt_optimizer_step_async, lr, inactive_params, grad_scale_inv, found_inf, stream,
             qk_logits);
}

StepReport Optimizer::wait() {
  Busy busy(busy_, "the optimizer");
  muonrt_optimizer_t* optimizer = get();
  const std::shared_ptr<Held> held = held_;
  StepReport report{muonrt::detail::filled(muonrt_step_report_init_sized)};
  const auto call = [&] { return muonrt_optimizer_wait(&report.c, optimizer); };
  with_cause(
      held->functions.get(), [&] { collective(held->comm.get(), call); }, false);
  return end_step(report);
}

}  // namespace binding
