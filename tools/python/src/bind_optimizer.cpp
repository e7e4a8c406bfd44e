#include <utility>

#include "optimizer.hpp"

namespace binding {

namespace {

void bind_state_shard(nb::module_& module) {
  nb::class_<StateShard>(
      module, "StateShard",
      "A block of state on this rank, with its position in the whole tensor.\n\n"
      "Each dimension of ``shape`` has a list of index ranges in ``runs``. The elements whose\n"
      "index is in these ranges in every dimension form a sequence, in row-major order. The state\n"
      "shard holds the elements ``begin`` to ``end`` of this sequence. Example: rows 2 and 3 of a\n"
      "4 x 3 matrix have shape ``[4, 3]``, runs ``[[(2, 4)], [(0, 3)]]``, begin 0 and end 6.\n\n"
      "For ``\"normuon\"`` the tensor has one dimension: the neurons of all matrices.")
      .def_ro("param", &StateShard::param, "Name of the parameter")
      .def_ro("kind", &StateShard::kind,
              "\"momentum\", \"variance\", \"master\", \"remainder\" or \"normuon\"")
      .def_ro("shape", &StateShard::shape,
              "Shape of the whole tensor; neighboring dimensions may be merged")
      .def_ro("runs", &StateShard::runs, "For each dimension a list of ranges (begin, end)")
      .def_ro("begin", &StateShard::begin, "First element in the sequence")
      .def_ro("end", &StateShard::end, "The element after the last one in the sequence")
      .def_ro("write_range", &StateShard::write_range,
              "(begin, end), counted from the first element of ``data``: what this rank writes to\n"
              "a checkpoint. Ranks that hold the same elements divide this work among them.")
      .def_prop_ro(
          "data", [](const StateShard& shard) { return shard.data; },
          nb::sig("def data(self) -> typing.Any"),
          "The elements, in one dimension: an array over muonrt's memory, as Optimizer.state()\n"
          "returns it");
}

/// Reports the caller's functions to the garbage collector, because they may refer to the
/// optimizer.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const CallerFunctions* f = nb::inst_ptr<Optimizer>(self)->functions();
  if (f == nullptr) return 0;
  Py_VISIT(f->assign.ptr());
  Py_VISIT(f->gather.ptr());
  Py_VISIT(f->redistribute.ptr());
  return 0;
}

int clear(PyObject* self) {
  CallerFunctions* f = nb::inst_ready(self) ? nb::inst_ptr<Optimizer>(self)->functions() : nullptr;
  if (f == nullptr) return 0;
  // Move the functions out first, because the destruction of a function may run code that reads the
  // optimizer.
  const nb::object kept[] = {std::exchange(f->assign, nb::none()),
                             std::exchange(f->gather, nb::none()),
                             std::exchange(f->redistribute, nb::none())};
  return 0;
}

PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear)},
                        {0, nullptr}};

}  // namespace

void bind_optimizer(nb::module_& module) {
  static const std::string made =
      cat("def __init__(self, params: collections.abc.Sequence[Param], groups: "
          "collections.abc.Sequence[Group], comm: Comm | None = None, ",
          option_signature(), " -> None");
  static const std::string changed =
      cat("def set_group(self, index: int, ", group_signature(), " -> None");
  bind_report(module);
  bind_state_shard(module);
  nb::class_<Optimizer> optimizer(
      module, "Optimizer", nb::is_weak_referenceable(), nb::type_slots(kSlots),
      "Muon and AdamW over sharded parameters; one step updates all of them.\n\n"
      "One thread at a time can use an optimizer. A second one gets InvalidStateError.");
  optimizer
      .def(nb::init<const std::vector<Param*>&, const std::vector<Group*>&, Comm*,
                    const nb::kwargs&>(),
           nb::arg("params"), nb::arg("groups"), nb::arg("comm").none() = nb::none(),
           nb::arg("settings"), nb::sig(made.c_str()),
           "Creates an optimizer. Collective over ``comm``; without ``comm`` there is one rank.\n\n"
           "Every rank passes the same parameters in the same order, with its own arrays. The\n"
           "arrays are kept, and all of them are on one device.\n\n"
           "Settings have the names of muonrt_optimizer_options_t, muonrt_tuning_options_t and\n"
           "muonrt_debug_options_t, and choices are words: threads=0, timeout_ms, clip_norm,\n"
           "transport_dtype=\"bfloat16\", iteration_dtype=\"float32\", health_every, trace, ...\n"
           "assign(info), gather(name, owner, local, full, stream) and redistribute(name, owner,\n"
           "full, local, stream) are your functions of include/muonrt/distributed.h, with the\n"
           "overlap async_parallelism=True and prefetch_count=1. assign returns a rank, or a list\n"
           "with one for each matrix of a stack. Arrays are views like those of state(), in the\n"
           "transport dtype, and have values only during the call; full is None on ranks other\n"
           "than the owner. An exception ends the call with CallbackError on every rank, and is\n"
           "its __cause__ on the rank that raised it.\n\n"
           "If device (\"host\" or \"cuda\") and device_index are not given, they are those of\n"
           "the arrays.\n\n"
           "On CUDA, ``comm`` is one of Comm.nccl or Comm.staged, and the parameters have been\n"
           "written, or their writes are enqueued on the default stream.")
      .def("step", &Optimizer::step, nb::arg("lr"),
           nb::arg("inactive_params") = std::vector<int64_t>{}, nb::arg("grad_scale_inv") = 1.0,
           nb::arg("found_inf") = false, nb::arg("stream") = nb::none(),
           nb::arg("qk_logits").none() = nb::none(),
           nb::sig("def step(self, lr: float | collections.abc.Sequence[float], "
                   "inactive_params: collections.abc.Sequence[int] = [], "
                   "grad_scale_inv: typing.Any = 1.0, found_inf: typing.Any = False, "
                   "stream: int | None = None, qk_logits: typing.Any = None) -> StepReport"),
           "Runs one step, which updates every parameter or none. Collective; the GIL is\n"
           "released while the step runs. When the call returns, the work of the step has ended,\n"
           "so every stream sees the new parameters.\n\n"
           ":param lr: the learning rate, or a list with one rate for each group.\n"
           ":param inactive_params: indices of parameters that do not take part in this step,\n"
           "    the same on every rank.\n"
           ":param grad_scale_inv: a factor of all gradients: a number, or a float32 array of one\n"
           "    element on the optimizer's device.\n"
           ":param found_inf: if true on any rank, all ranks skip the step: a bool, or a float32\n"
           "    array of one element on the optimizer's device.\n"
           ":param stream: on CUDA the cudaStream_t, as an integer, that writes the gradients.\n"
           "    None: the default stream.\n"
           ":param qk_logits: float32 array for QK-clip: the largest logit of each query head on\n"
           "    this rank, layer by layer, in ascending order of the layers that a QkClip names;\n"
           "    -inf for a head that this rank does not compute. The maximum over all ranks is\n"
           "    used. None: -inf for every head.")
      .def("step_async", &Optimizer::step_async, nb::arg("lr"),
           nb::arg("inactive_params") = std::vector<int64_t>{}, nb::arg("grad_scale_inv") = 1.0,
           nb::arg("found_inf") = false, nb::arg("stream") = nb::none(),
           nb::arg("qk_logits").none() = nb::none(),
           nb::sig("def step_async(self, lr: float | collections.abc.Sequence[float], "
                   "inactive_params: collections.abc.Sequence[int] = [], "
                   "grad_scale_inv: typing.Any = 1.0, found_inf: typing.Any = False, "
                   "stream: int | None = None, qk_logits: typing.Any = None) -> None"),
           "Enqueues one step, with the arguments of step(), and returns before it has ended.\n"
           "Collective. wait() returns the report and raises the errors.\n\n"
           "On CUDA, work that is enqueued on ``stream`` afterwards runs after the step. On the\n"
           "host, neither read nor write parameters and do not write gradients until wait() has\n"
           "returned. step(), step_async(), save(), save_begin(), load() and copy_state_from()\n"
           "first complete a step in flight; calls that bind arrays, change settings or give\n"
           "access to state raise InvalidStateError. See include/muonrt/step_async.h.")
      .def("wait", &Optimizer::wait, nb::sig("def wait(self) -> StepReport"),
           "Completes the step that step_async() has enqueued. Collective; the GIL is released.\n"
           "Raises the errors of step(), and InvalidStateError if no step is in flight.")
      .def("set_grad", &Optimizer::set_grad, nb::arg("param"), nb::arg("grad").none(),
           nb::sig("def set_grad(self, param: str | int, grad: typing.Any) -> None"),
           "Binds the gradient of a parameter, given by name or index, for the steps to come.\n"
           "The array is kept. None: the parameter has no gradient until another one is bound.")
      .def("set_grads", &Optimizer::set_grads, nb::arg("grads"),
           nb::sig("def set_grads(self, grads: collections.abc.Sequence[typing.Any]) -> None"),
           "Binds the gradients of all parameters, in their order; see set_grad()")
      .def("_set_grad_addresses", &Optimizer::set_grad_addresses, nb::arg("addresses"),
           nb::arg("owners"),
           nb::sig("def _set_grad_addresses(self, addresses: collections.abc.Sequence[int], "
                   "owners: typing.Any) -> None"))
      .def("set_data", &Optimizer::set_data, nb::arg("param"), nb::arg("data"),
           nb::sig("def set_data(self, param: str | int, data: typing.Any) -> None"),
           "Binds the array of a parameter, given by name or index, and keeps it.\n\n"
           "It must hold the values of the previous array. If it holds others, call\n"
           "reset_masters() afterwards. Local; call it between steps.")
      .def("set_group", &Optimizer::set_group, nb::arg("index"), nb::arg("settings"),
           nb::sig(changed.c_str()),
           "Changes settings of a group for the steps to come. Make the same change on every\n"
           "rank before the same step.")
      .def("reset_masters", &Optimizer::reset_masters, nb::arg("params").none() = nb::none(),
           nb::sig("def reset_masters(self, params: "
                   "collections.abc.Sequence[str | int] | None = None) -> None"),
           "Resets master weights to the values of the parameters. Call it after you have\n"
           "written parameters, with the same list on every rank.\n\n"
           ":param params: names or indices. None: all parameters.\n\n"
           "On CUDA the parameters have been written, or their writes are enqueued on the\n"
           "default stream.")
      .def_prop_rw("update_counts", &Optimizer::update_counts, &Optimizer::set_update_counts,
                   "For each parameter the number of committed steps that have updated it. AdamW\n"
                   "uses it for bias correction. To restore state yourself, set ``steps`` first,\n"
                   "then these counts, with the same values on every rank.")
      .def("recover", &Optimizer::recover, nb::arg("survivors"),
           nb::arg("survivor_policy") = "majority",
           nb::sig("def recover(self, survivors: Comm, survivor_policy: str = 'majority') "
                   "-> tuple[str, int]"),
           "Settles a failed step among the surviving ranks, so that all of them have committed\n"
           "the same steps. Collective over ``survivors``, which was created after the fault;\n"
           "see muonrt_optimizer_recover().\n\n"
           ":param survivor_policy: \"majority\": more than half of the ranks must survive, or "
           "half\n"
           "    with rank 0. \"any\": only if the other ranks have certainly ended.\n"
           ":return: what was done (\"none\", \"rolled_forward\" or \"discarded\"), and the\n"
           "    number of committed steps.")
      .def("copy_state_from", &Optimizer::copy_state_from, nb::arg("old").none(),
           nb::sig("def copy_state_from(self, old: Optimizer | None) -> None"),
           "Copies all parameters and state of another optimizer, which may have other ranks and\n"
           "another mesh, to this one. Collective; see muonrt_optimizer_copy_state().\n\n"
           ":param old: the old optimizer, on which a step may have failed. None: this rank has\n"
           "    none.")
      .def("clipped_heads", &Optimizer::clipped_heads,
           nb::sig("def clipped_heads(self) -> list[tuple[int, int]]"),
           "Returns the heads that QK-clip has clipped in the last committed step, as pairs of\n"
           "layer and head")
      .def("qk_layers", &Optimizer::qk_layers,
           nb::sig("def qk_layers(self) -> list[tuple[int, int]]"),
           "Returns the layers of ``qk_logits`` of a step in their order, as pairs of layer and\n"
           "number of query heads")
      .def("find_param", &Optimizer::find_param, nb::arg("name"),
           nb::sig("def find_param(self, name: str | int) -> int"),
           "Returns the index of a parameter")
      .def_ro("names", &Optimizer::names, "Names of the parameters")
      .def_prop_rw("steps", &Optimizer::steps, &Optimizer::set_steps,
                   "Number of committed steps. Setting it also sets the update count of every\n"
                   "parameter; set the same number on every rank.")
      .def(
          "describe",
          [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_describe_plan, json); },
          nb::arg("json") = false, nb::sig("def describe(self, json: bool = False) -> str"),
          "Returns the plan: owners, chunks, bytes, memory, balance")
      .def(
          "trace", [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_get_trace, json); },
          nb::arg("json") = false, nb::sig("def trace(self, json: bool = False) -> str"),
          "Returns the stages of the last step in their order, or as JSON their times as a\n"
          "Chrome trace, for which the optimizer needs trace=True")
      .def("counters", &Optimizer::counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Returns the counters of this rank since the creation; see muonrt_counters_t")
      .def("memory", &Optimizer::memory, nb::sig("def memory(self) -> dict[str, int]"),
           "Returns the memory of this rank in bytes, planned and allocated; see muonrt_memory_t")
      .def("health", &Optimizer::health, nb::sig("def health(self) -> dict[str, typing.Any]"),
           "Returns the statistics of the last step that collected them (health_every); see\n"
           "muonrt_health_t and muonrt_matrix_health_t")
      .def("close", &Optimizer::close, nb::sig("def close(self) -> None"),
           "Destroys the optimizer. Its memory is freed when no array over its state exists any\n"
           "more.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Optimizer"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("close")(); }, nb::arg("args"));
  bind_plan(module, optimizer);
  bind_state(optimizer);
  bind_checkpoint(optimizer);
}

}  // namespace binding
