#include "optimizer.hpp"

namespace binding {

Optimizer::Optimizer(const std::vector<Param*>& params, const std::vector<Group*>& groups,
                     Comm* comm, const nb::kwargs& settings) {
  muonrt_optimizer_options_t options = muonrt::options();
  set_options(options, settings);
  place_ = place_of(params, options, settings);
  Comm alone(nullptr);
  if (comm == nullptr) {
    alone.handle = created(muonrt_comm_create_self)->handle;
    if (place_.on_cuda()) alone.handle = staged(alone, place_.index)->handle;
    comm = &alone;
  }
  Busy busy(comm->busy, "the communicator");
  auto held = std::make_shared<Held>();
  held->comm = comm->handle;
  std::vector<ParamView> views(params.size());
  std::vector<muonrt_param_t> c_params;
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& param = *params[i];
    fill(views[i], param);
    c_params.push_back(views[i].c);
    names.push_back(param.name);
    held->data.push_back(param.data);
    held->masters.push_back(param.master);
    held->grads.push_back(param.grad);
    grad_dtypes_.push_back(param.settings.grad_dtype);
    grad_shapes_.push_back(
        param.grad_layout ? param.grad_layout->local_shape(param.shape, comm->rank(), comm->size())
                          : param.data.shape);
  }
  std::vector<muonrt_group_t> c_groups;
  for (const Group* group : groups) {
    groups_.push_back(*group);
    c_groups.push_back(group->settings);
  }
  collective(comm->get(), [&] {
    return muonrt_optimizer_create(&held->handle, comm->get(), &options, c_groups.data(),
                                   static_cast<int32_t>(c_groups.size()), c_params.data(),
                                   static_cast<int64_t>(c_params.size()));
  });
  held_ = std::move(held);
  alive<Optimizer>().insert(this);
}

size_t Optimizer::index(nb::handle param) const {
  int64_t found = -1;
  if (nb::isinstance<nb::str>(param))
    check(muonrt_optimizer_find_param(get(), nb::cast<std::string>(param).c_str(), &found));
  else
    found = nb::cast<int64_t>(param);
  if (found < 0 || found >= static_cast<int64_t>(names.size()))
    refuse(kInvalidArg, cat("no parameter ", found, "; there are ", names.size()));
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

/// A number that the step reads on the device; null where it is no array.
const float* Optimizer::take_scalar(const char* what, nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return nullptr;
  Array array = take_array(what, object, "float32", false);
  if (array.held.size() != 1)
    refuse(kInvalidArg, cat(what, " has shape ", shape_text(array.shape), "; pass one element"));
  require_place(what, array, place_, "the optimizer");
  held_->scalars.push_back(array);
  return static_cast<const float*>(array.data);
}

void Optimizer::set_grads(const std::vector<nb::object>& grads) {
  Busy busy(busy_, "the optimizer");
  if (grads.size() != names.size())
    refuse(kInvalidArg, cat(grads.size(), " gradients for ", names.size(), " parameters"));
  std::vector<std::optional<Array>> arrays;
  std::vector<const void*> pointers;
  for (size_t i = 0; i < grads.size(); ++i) {
    arrays.push_back(take_grad(i, grads[i]));
    pointers.push_back(arrays[i] ? arrays[i]->data : nullptr);
  }
  check(muonrt_optimizer_set_grads(get(), pointers.data(), static_cast<int64_t>(pointers.size())));
  held_->grads = std::move(arrays);
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
    refuse(kInvalidArg, cat("no group ", index, "; there are ", groups_.size()));
  Group changed = groups_[static_cast<size_t>(index)];
  changed.point_inside();
  binding::set_group(changed, settings);
  check(muonrt_optimizer_set_group(get(), index, &changed.settings));
  groups_[static_cast<size_t>(index)] = changed;
}

void Optimizer::take_params(const std::optional<std::vector<nb::object>>& params) {
  Busy busy(busy_, "the optimizer");
  std::vector<int64_t> list;
  if (params)
    for (const nb::object& param : *params) list.push_back(static_cast<int64_t>(index(param)));
  if (!params || !list.empty())
    check(muonrt_optimizer_reset_masters(get(), params ? list.data() : nullptr,
                                         static_cast<int64_t>(list.size())));
}

std::vector<int64_t> Optimizer::updates() const {
  std::vector<int64_t> out(names.size());
  for (size_t i = 0; i < out.size(); ++i)
    check(muonrt_optimizer_get_update_count(get(), static_cast<int64_t>(i), &out[i]));
  return out;
}

void Optimizer::set_updates(const std::vector<int64_t>& updates) {
  Busy busy(busy_, "the optimizer");
  if (updates.size() != names.size())
    refuse(kInvalidArg,
           cat(updates.size(), " counts of updates for ", names.size(), " parameters"));
  for (size_t i = 0; i < updates.size(); ++i)
    check(muonrt_optimizer_set_update_count(get(), static_cast<int64_t>(i), updates[i]));
}

/// Keeps what the arguments point to in `held_`.
void Optimizer::take_scalars(muonrt_step_args_t& args, nb::handle grad_scale_inv,
                             nb::handle found_inf, nb::handle qk_logits) {
  static const float found = 1.0f;
  args.device_grad_scale_inv = take_scalar("grad_scale_inv", grad_scale_inv);
  if (!args.device_grad_scale_inv && !nb::try_cast(grad_scale_inv, args.grad_scale_inv))
    refuse(kInvalidArg, cat("grad_scale_inv is ", nb::repr(grad_scale_inv).c_str(), ", no number"));
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

Report Optimizer::step(const std::variant<double, std::vector<double>>& lr,
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
    // A step without arguments votes no, so that the peers' step ends with an error.
    collective(held->comm.get(), [&] {
      muonrt_optimizer_step(optimizer, nullptr, nullptr);
      return MUONRT_OK;
    });
    throw;
  }
  Report report{muonrt::detail::filled(muonrt_step_report_init_sized)};
  collective(held->comm.get(), [&] { return muonrt_optimizer_step(optimizer, &args, &report.c); });
  held->scalars.clear();
  return report;
}

std::tuple<std::string, int64_t> Optimizer::recover(Comm& survivors) {
  Busy busy(busy_, "the optimizer");
  Busy both(survivors.busy, "the communicator");
  auto recovery = muonrt::detail::filled(muonrt_recovery_init_sized);
  collective(survivors.get(),
             [&] { return muonrt_optimizer_recover(get(), survivors.get(), &recovery); });
  return {recovery.outcome == MUONRT_RECOVERY_ROLLED_FORWARD ? "forward"
          : recovery.outcome == MUONRT_RECOVERY_DISCARDED    ? "discarded"
                                                             : "nothing",
          recovery.step};
}

void close_optimizers() {
  for (Optimizer* optimizer : alive<Optimizer>())
    if (!optimizer->in_use()) optimizer->close();
}

void bind_optimizer(nb::module_& module) {
  static const std::string made =
      cat("def __init__(self, params: collections.abc.Sequence[Param], groups: "
          "collections.abc.Sequence[Group], comm: Comm | None = None, ",
          option_signature(), " -> None");
  static const std::string changed =
      cat("def set_group(self, index: int, ", group_signature(), " -> None");
  bind_report(module);
  nb::class_<StateExtent>(module, "StateExtent",
                          "A piece of state that lies on this rank. Of a tensor of `shape`: the\n"
                          "product of the index lists `runs`, [(begin, end), ...] for each\n"
                          "dimension, and of these, row-major, elements `begin` to `end`.\n"
                          "NorMuon: lines. `data`: these, of one dimension (as Optimizer.state\n"
                          "gives it). `written`: of those, counted from `begin`, what this rank\n"
                          "writes where all who hold the same share a checkpoint's work.")
      .def_ro("param", &StateExtent::param)
      .def_ro("kind", &StateExtent::kind)
      .def_ro("shape", &StateExtent::shape)
      .def_ro("runs", &StateExtent::runs)
      .def_ro("begin", &StateExtent::begin)
      .def_ro("end", &StateExtent::end)
      .def_ro("written", &StateExtent::written)
      .def_prop_ro(
          "data", [](const StateExtent& extent) { return extent.data; },
          nb::sig("def data(self) -> typing.Any"));
  nb::class_<Optimizer> optimizer(
      module, "Optimizer", nb::is_weak_referenceable(),
      "Muon and AdamW over sharded parameters, one step for all of them");
  optimizer
      .def(
          nb::init<const std::vector<Param*>&, const std::vector<Group*>&, Comm*,
                   const nb::kwargs&>(),
          nb::arg("params"), nb::arg("groups"), nb::arg("comm").none() = nb::none(),
          nb::arg("settings"), nb::sig(made.c_str()),
          "Collective over `comm` (none: one rank). Every rank passes the same parameters in the\n"
          "same order, with its own arrays, which are kept and lie on one device. Settings by the\n"
          "names of muonrt_optimizer_options_t: threads=1, transport_dtype=\"bfloat16\",\n"
          "iteration_dtype=\"float32\", timeout_ms, clip_norm, health_every, trace, ...\n"
          "device (\"host\", \"cuda\") and device_index: the arrays' where they are not given.\n"
          "On CUDA parameters have been written, or are on the default stream; `comm` is one of\n"
          "Comm.nccl or Comm.staged.")
      .def("step", &Optimizer::step, nb::arg("lr"),
           nb::arg("inactive_params") = std::vector<int64_t>{}, nb::arg("grad_scale_inv") = 1.0,
           nb::arg("found_inf") = false, nb::arg("stream") = nb::none(),
           nb::arg("qk_logits").none() = nb::none(),
           "One step of every parameter, or of none. Collective; the GIL is free meanwhile.\n"
           "lr: the rate, or a list of one for each group.\n"
           "inactive_params: indices that sit out, the same list on every rank. found_inf: on any\n"
           "rank: the step is skipped on all. Both grad_scale_inv and found_inf may be float32 "
           "arrays\n"
           "of one element on the optimizer's device. stream: CUDA: an integer, the cudaStream_t "
           "on\n"
           "which gradients are written; none: the default stream. When the call returns, the "
           "step's\n"
           "work has ended: every stream sees the new parameters.\n"
           "qk_logits: float32, the largest logit here of each query head, layer by layer that a\n"
           "QkClip names, ascending; -inf of a head that is not here; none: of none. The largest\n"
           "over all ranks decides.")
      .def("set_grad", &Optimizer::set_grad, nb::arg("param"), nb::arg("grad").none(),
           "Rebinds and keeps the gradient of a parameter (name or index); None: none")
      .def("set_grads", &Optimizer::set_grads, nb::arg("grads"),
           "The same for all parameters, in their order")
      .def("set_data", &Optimizer::set_data, nb::arg("param"), nb::arg("data"),
           "Rebinds and keeps the array of a parameter (name or index), with the values that the\n"
           "last one had; of others tell take_params. Local, between steps")
      .def("set_group", &Optimizer::set_group, nb::arg("index"), nb::arg("settings"),
           nb::sig(changed.c_str()),
           "Changes settings of a group for the steps to come, the same on every rank")
      .def("take_params", &Optimizer::take_params, nb::arg("params").none() = nb::none(),
           "Takes new weights, after arrays of parameters were written: master weights follow\n"
           "them. params: names or indices, the same on every rank; none: all. On CUDA what\n"
           "writes them has ended, or is on the default stream.")
      .def_prop_rw("updates", &Optimizer::updates, &Optimizer::set_updates,
                   "Committed steps in which each parameter took part, which AdamW corrects its\n"
                   "moments by; set them to resume, after `steps`, the same on every rank")
      .def("recover", &Optimizer::recover, nb::arg("survivors"),
           "After a step that failed: (\"nothing\" | \"forward\" | \"discarded\", committed "
           "steps).\n"
           "Collective over `survivors`.")
      .def(
          "clipped_heads",
          [](const Optimizer& o) {
            int64_t count = 0;
            check(muonrt_optimizer_get_clipped_heads(o.get(), nullptr, nullptr, 0, &count));
            std::vector<int32_t> layers(static_cast<size_t>(count)), heads(layers.size());
            check(muonrt_optimizer_get_clipped_heads(o.get(), layers.data(), heads.data(), count,
                                                     &count));
            std::vector<std::pair<int32_t, int32_t>> out;
            for (size_t i = 0; i < layers.size(); ++i) out.emplace_back(layers[i], heads[i]);
            return out;
          },
          "[(layer, head), ...] that QK-clip acted on in the last committed step")
      .def("find", &Optimizer::index, nb::arg("name"), "Index of a parameter")
      .def_ro("names", &Optimizer::names)
      .def_prop_rw(
          "steps",
          [](const Optimizer& optimizer) {
            int64_t step = 0;
            check(muonrt_optimizer_get_step(optimizer.get(), &step));
            return step;
          },
          [](Optimizer& optimizer, int64_t step) {
            check(muonrt_optimizer_set_step(optimizer.get(), step));
          },
          "Committed steps; set it to resume, the same on every rank")
      .def(
          "describe",
          [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_describe_plan, json); },
          nb::arg("json") = false, "The plan: owners, chunks, bytes, memory, balance")
      .def(
          "trace", [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_get_trace, json); },
          nb::arg("json") = false,
          "The last step: the order of its stages, or their times as a Chrome trace (trace=True)")
      .def(
          "counters", [](const Optimizer& o) { return counters(o.get()); },
          "Counts since creation, of this rank")
      .def(
          "health", [](const Optimizer& o) { return health(o.get(), o.names); },
          "What the last step that measured found (health_every)")
      .def("close", &Optimizer::close,
           "Gives back everything, once no array of state() is left either")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Optimizer"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("close")(); }, nb::arg("args"));
  bind_state(optimizer);
  bind_checkpoint(optimizer);
}

}  // namespace binding
