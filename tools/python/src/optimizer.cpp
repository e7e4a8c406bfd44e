#include "optimizer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

namespace binding {

/// The arguments of muonrt_optimizer_create(), and the storage that they point to.
struct Optimizer::Creation {
  Options options;
  std::vector<ParamView> views;
  std::vector<muonrt_param_t> params;
  std::vector<muonrt_group_t> groups;
  std::shared_ptr<Held> held = std::make_shared<Held>();
};

namespace {

bool has_partial_gradients(const Param& param) {
  if (param.grad_layout) return true;
  if (!param.layout) return false;
  const auto& placements = param.layout->placements;
  return std::any_of(placements.begin(), placements.end(), [](const muonrt_placement_t& placement) {
    return placement.kind == MUONRT_PLACEMENT_PARTIAL;
  });
}

/// Takes part in the peers' call of muonrt_optimizer_create() with arguments that it rejects. The
/// peers then return an error at once; without this call they would wait until their timeout.
void reject_creation(muonrt_comm_t* comm) {
  collective(comm, [&] {
    muonrt_optimizer_t* rejected = nullptr;
    muonrt_optimizer_create(&rejected, comm, nullptr, nullptr, 0, nullptr, 0);
    return MUONRT_OK;
  });
}

/// Warns of a first step that has moved a parameter far.
/// @param lr  the rate of the parameter's group in this step.
void warn_of_large_update(const muonrt_step_report_t& report, const std::string& name, double lr) {
  const double ratio = report.large_update_ratio;
  char numbers[160];
  // The update is in proportion to the rate.
  std::snprintf(numbers, sizeof numbers,
                "%ld%% of its RMS, which is above 5%%; use a smaller learning rate instead of %g, "
                "such as %.2g, which moves it by about 1%%",
                std::lround(ratio * 100), lr, lr * 0.01 / ratio);
  const std::string text = cat("param '", name, "': the first step moves it by ", numbers);
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw nb::python_error();
}

}  // namespace

void Optimizer::prepare(Creation& creation, const std::vector<Param*>& params,
                        const std::vector<Group*>& groups, const Comm* comm,
                        const nb::kwargs& settings) {
  set_options(creation.options, settings);
  place_ = place_of(params, creation.options, settings);
  const int32_t rank = comm ? comm->rank() : 0, size = comm ? comm->size() : 1;
  Held& held = *creation.held;
  creation.views = std::vector<ParamView>(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& param = *params[i];
    fill(creation.views[i], param);
    creation.params.push_back(creation.views[i].c);
    names.push_back(param.name);
    held.data.push_back(param.data);
    held.masters.push_back(param.master);
    held.grads.push_back(param.grad);
    group_of_.push_back(param.settings.group);
    grad_dtypes_.push_back(param.settings.grad_dtype);
    grad_shapes_.push_back(param.grad_layout
                               ? param.grad_layout->local_shape(param.shape, rank, size)
                               : param.data.shape);
    const auto group = static_cast<size_t>(param.settings.group);
    momentum_dtypes_.push_back(group < groups.size() ? groups[group]->settings.momentum_dtype
                                                     : MUONRT_DTYPE_F32);
    owners_hold_moments_.push_back(has_partial_gradients(param));
  }
  held.functions = caller_functions(creation.options, params, place_);
  if (held.functions) held.functions->held = creation.held;
  for (const Group* group : groups) {
    groups_.push_back(*group);
    creation.groups.push_back(group->settings);
  }
}

Optimizer::Optimizer(const std::vector<Param*>& params, const std::vector<Group*>& groups,
                     Comm* comm, const nb::kwargs& settings) {
  std::optional<Busy> busy;
  if (comm != nullptr) busy.emplace(comm->busy, "the communicator");
  std::shared_ptr<muonrt_comm_t> over = comm != nullptr ? comm->handle : nullptr;
  if (comm != nullptr) comm->get();
  Creation creation;
  try {
    prepare(creation, params, groups, comm, settings);
  } catch (...) {
    if (over) reject_creation(over.get());
    throw;
  }
  if (!over) {
    std::unique_ptr<Comm> one_rank = created(muonrt_comm_create_self);
    if (place_.on_cuda()) one_rank = staged(*one_rank, place_.index);
    over = one_rank->handle;
  }
  Held& held = *creation.held;
  held.comm = over;
  const muonrt_optimizer_options_t* options = creation.options.get();
  with_cause(held.functions.get(), [&] {
    collective(over.get(), [&] {
      return muonrt_optimizer_create(&held.handle, over.get(), options, creation.groups.data(),
                                     static_cast<int32_t>(creation.groups.size()),
                                     creation.params.data(),
                                     static_cast<int64_t>(creation.params.size()));
    });
  });
  held_ = std::move(creation.held);
  alive<Optimizer>().insert(this);
}

size_t Optimizer::index(nb::handle param) const {
  int64_t found = -1;
  if (nb::isinstance<nb::str>(param))
    check(muonrt_optimizer_find_param(&found, get(), nb::cast<std::string>(param).c_str()));
  else
    found = nb::cast<int64_t>(param);
  if (found < 0 || found >= static_cast<int64_t>(names.size()))
    refuse(kInvalidArg, cat("the parameter index is ", found, ", but there are ", names.size(),
                            " parameters; pass an index of these, or a name"));
  return static_cast<size_t>(found);
}

Array Optimizer::take_like(const std::string& what, nb::handle object, muonrt_dtype_t dtype,
                           const std::vector<int64_t>& shape, bool writable) const {
  Array out =
      take_array(what, object, dtype == MUONRT_DTYPE_BF16 ? "bfloat16" : "float32", writable);
  if (out.shape != shape)
    refuse(kInvalidArg,
           cat(what, " has shape ", shape_text(out.shape), ", not ", shape_text(shape)));
  require_place(what, out, place_, "the optimizer");
  return out;
}

std::optional<Array> Optimizer::take_grad(size_t i, nb::handle grad) const {
  if (grad.is_none()) return std::nullopt;
  return take_like(cat("param '", names[i], "': grad"), grad, grad_dtypes_[i], grad_shapes_[i],
                   false);
}

/// Returns the element of an array, which the step reads on the device; NULL if `object` is not an
/// array.
const float* Optimizer::take_scalar(const char* what, nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return nullptr;
  Array array = take_array(what, object, "float32", false);
  if (array.held.size() != 1)
    refuse(kInvalidArg, cat(what, " has shape ", shape_text(array.shape), "; pass one element"));
  require_place(what, array, place_, "the optimizer");
  held_->scalars.push_back(array);
  return static_cast<const float*>(array.data);
}

void Optimizer::set_grad(nb::handle param, nb::handle grad) {
  Busy busy(busy_, "the optimizer");
  const size_t i = index(param);
  std::optional<Array> array = take_grad(i, grad);
  check(muonrt_optimizer_set_grad(get(), static_cast<int64_t>(i), array ? array->data : nullptr));
  held_->grads[i] = std::move(array);
}

void Optimizer::set_grads(const std::vector<nb::object>& grads) {
  Busy busy(busy_, "the optimizer");
  if (grads.size() != names.size())
    refuse(kInvalidArg, cat("grads has ", grads.size(), " gradients, but there are ", names.size(),
                            " parameters; pass one gradient or None for each"));
  std::vector<std::optional<Array>> arrays;
  std::vector<const void*> pointers;
  for (size_t i = 0; i < grads.size(); ++i) {
    arrays.push_back(take_grad(i, grads[i]));
    pointers.push_back(arrays[i] ? arrays[i]->data : nullptr);
  }
  check(muonrt_optimizer_set_grads(get(), pointers.data(), static_cast<int64_t>(pointers.size())));
  held_->grads = std::move(arrays);
}

void Optimizer::set_grad_addresses(const std::vector<uintptr_t>& addresses, nb::object owners) {
  Busy busy(busy_, "the optimizer");
  std::vector<const void*> pointers;
  for (const uintptr_t address : addresses)
    pointers.push_back(reinterpret_cast<const void*>(address));  // NOLINT: an address of torch
  check(muonrt_optimizer_set_grads(get(), pointers.data(), static_cast<int64_t>(pointers.size())));
  held_->grads.assign(names.size(), std::nullopt);
  held_->grad_owners = std::move(owners);
}

void Optimizer::set_data(nb::handle param, nb::handle data) {
  Busy busy(busy_, "the optimizer");
  muonrt_optimizer_t* optimizer = get();
  const size_t i = index(param);
  Array& bound = held_->data[i];
  Array array =
      take_like(cat("param '", names[i], "': data"), data, bound.dtype, bound.shape, true);
  check(muonrt_optimizer_set_data(optimizer, static_cast<int64_t>(i), array.data));
  bound = std::move(array);
}

void Optimizer::set_group(int32_t index, const nb::kwargs& settings) {
  Busy busy(busy_, "the optimizer");
  if (index < 0 || index >= static_cast<int32_t>(groups_.size()))
    refuse(kInvalidArg, cat("the group index is ", index, ", but there are ", groups_.size(),
                            " groups; pass an index of these"));
  Group changed = groups_[static_cast<size_t>(index)];
  changed.point_inside();
  binding::set_group(changed, settings);
  check(muonrt_optimizer_set_group(get(), index, &changed.settings));
  groups_[static_cast<size_t>(index)] = changed;
}

void Optimizer::reset_masters(const std::optional<std::vector<nb::object>>& params) {
  Busy busy(busy_, "the optimizer");
  std::vector<int64_t> list;
  if (params)
    for (const nb::object& param : *params) list.push_back(static_cast<int64_t>(index(param)));
  if (!params || !list.empty())
    check(muonrt_optimizer_reset_masters(get(), params ? list.data() : nullptr,
                                         static_cast<int64_t>(list.size())));
}

std::vector<int64_t> Optimizer::update_counts() {
  Busy busy(busy_, "the optimizer");
  std::vector<int64_t> out(names.size());
  for (size_t i = 0; i < out.size(); ++i)
    check(muonrt_optimizer_get_update_count(&out[i], get(), static_cast<int64_t>(i)));
  return out;
}

void Optimizer::set_update_counts(const std::vector<int64_t>& counts) {
  Busy busy(busy_, "the optimizer");
  if (counts.size() != names.size())
    refuse(kInvalidArg, cat("update_counts has ", counts.size(), " counts, but there are ",
                            names.size(), " parameters; pass one count for each"));
  for (size_t i = 0; i < counts.size(); ++i)
    check(muonrt_optimizer_set_update_count(get(), static_cast<int64_t>(i), counts[i]));
}

int64_t Optimizer::steps() {
  Busy busy(busy_, "the optimizer");
  int64_t step = 0;
  check(muonrt_optimizer_get_step(&step, get()));
  return step;
}

void Optimizer::set_steps(int64_t steps) {
  Busy busy(busy_, "the optimizer");
  check(muonrt_optimizer_set_step(get(), steps));
}

std::vector<std::pair<int32_t, int32_t>> Optimizer::clipped_heads() {
  return heads_of(muonrt_optimizer_get_clipped_heads);
}

std::vector<std::pair<int32_t, int32_t>> Optimizer::qk_layers() {
  return heads_of(muonrt_optimizer_get_qk_layers);
}

std::vector<std::pair<int32_t, int32_t>> Optimizer::heads_of(
    decltype(&muonrt_optimizer_get_clipped_heads) get_heads) {
  Busy busy(busy_, "the optimizer");
  int64_t count = 0;
  check(get_heads(nullptr, nullptr, 0, &count, get()));
  std::vector<int32_t> layers(static_cast<size_t>(count)), heads(layers.size());
  check(get_heads(layers.data(), heads.data(), count, &count, get()));
  std::vector<std::pair<int32_t, int32_t>> out;
  for (size_t i = 0; i < layers.size(); ++i) out.emplace_back(layers[i], heads[i]);
  return out;
}

/// Sets the arguments that may be arrays, and keeps the arrays in `held_`.
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

StepReport Optimizer::step(const std::variant<double, std::vector<double>>& lr,
                           const std::vector<int64_t>& inactive_params, nb::object grad_scale_inv,
                           nb::object found_inf, std::optional<uintptr_t> stream,
                           nb::object qk_logits) {
  Busy busy(busy_, "the optimizer");
  muonrt_optimizer_t* optimizer = get();
  const std::shared_ptr<Held> held = held_;
  held->scalars.clear();
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
    // A step without arguments votes to reject, so the peers' step returns an error at once.
    collective(held->comm.get(), [&] {
      muonrt_optimizer_step(nullptr, optimizer, nullptr);
      return MUONRT_OK;
    });
    throw;
  }
  StepReport report{muonrt::detail::filled(muonrt_step_report_init_sized)};
  with_cause(held->functions.get(), [&] {
    collective(held->comm.get(),
               [&] { return muonrt_optimizer_step(&report.c, optimizer, &args); });
  });
  held->scalars.clear();
  int32_t rank = 0;
  check(muonrt_comm_get_rank(&rank, held->comm.get()));
  if (report.c.large_update_param >= 0 && rank == 0) {
    const auto param = static_cast<size_t>(report.c.large_update_param);
    warn_of_large_update(report.c, names[param],
                         args.group_lrs ? args.group_lrs[group_of_[param]] : args.lr);
  }
  return report;
}

std::tuple<std::string, int64_t> Optimizer::recover(Comm& survivors,
                                                    const std::string& survivor_policy) {
  Busy busy(busy_, "the optimizer");
  Busy both(survivors.busy, "the communicator");
  muonrt_optimizer_t* optimizer = get();
  muonrt_comm_t* comm = survivors.get();
  auto recovery = muonrt::detail::filled(muonrt_recovery_init_sized);
  recovery.survivor_policy = survivor_policy_of(survivor_policy);
  collective(comm, [&] { return muonrt_optimizer_recover(optimizer, comm, &recovery); });
  return {recovery.outcome == MUONRT_RECOVERY_ROLLED_FORWARD ? "rolled_forward"
          : recovery.outcome == MUONRT_RECOVERY_DISCARDED    ? "discarded"
                                                             : "none",
          recovery.step};
}

void Optimizer::copy_state_from(Optimizer* from) {
  if (from == this) refuse(MUONRT_ERROR_INVALID_ARGUMENT, "from is this optimizer");
  std::optional<Busy> both;
  if (from) both.emplace(from->busy_, "the old optimizer");
  muonrt_optimizer_t* const old = from ? from->get() : nullptr;
  run([&](muonrt_optimizer_t* optimizer) { return muonrt_optimizer_copy_state(optimizer, old); });
}

void close_everything() {
  std::vector<std::shared_ptr<muonrt_comm_t>> used;
  list_used_comms<Optimizer>(used);
  list_used_comms<Comm>(used);
  if (!used.empty()) {
    const GilReleased released;
    for (const auto& comm : used)
      if (comm) muonrt_comm_abort(comm.get(), MUONRT_ERROR_ABORTED, "the Python interpreter exits");
  }
  for (int i = 0; i < 500 && (any_in_use<Optimizer>() || any_in_use<Comm>()); ++i) {
    const GilReleased released;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  close_all<Optimizer>();
  close_all<Comm>();
}

}  // namespace binding
