#include "optimizer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace binding {

/// The arguments of muonrt_optimizer_create(), and the memory that they point to.
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

/// Takes part in the peers' muonrt_optimizer_create() with invalid arguments. The peers then return
/// an error immediately instead of waiting for this rank until they time out.
void reject_creation(muonrt_comm_t* comm) {
  collective(comm, [&] {
    muonrt_optimizer_t* rejected = nullptr;
    muonrt_optimizer_create(&rejected, comm, nullptr, nullptr, 0, nullptr, 0);
    return MUONRT_OK;
  });
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
