#include <utility>

#include "optimizer.hpp"

namespace binding {

namespace {

void bind_state_shard(nb::module_& module) {
  nb::class_<StateShard>(
      module, "StateShard",
      "A block of the optimizer's state on this rank, with its position in the whole tensor.\n\n"
      "Two steps define which elements of the tensor the block holds. First, each dimension of\n"
      "``shape`` has a list of index ranges in ``runs``. The elements whose index is in one of\n"
      "these ranges in every dimension form a sequence, in row-major order. Second, the block\n"
      "holds the elements ``begin`` to ``end`` - 1 of this sequence. Example: rows 2 and 3 of a\n"
      "4 x 3 matrix have shape ``[4, 3]``, runs ``[[(2, 4)], [(0, 3)]]``, begin 0 and end 6.\n\n"
      "For ``\"normuon\"`` the tensor has one dimension, which contains the neurons of all\n"
      "matrices of the parameter. A neuron is a row or a column of a matrix, depending on the\n"
      "axis of NorMuon.")
      .def_ro("param", &StateShard::param, "Name of the parameter.")
      .def_ro("kind", &StateShard::kind,
              "Kind of state: \"momentum\", \"variance\", \"master\", \"remainder\" or\n"
              "\"normuon\".")
      .def_ro("shape", &StateShard::shape,
              "Shape of the whole tensor. Neighboring dimensions of the parameter may be\n"
              "merged.")
      .def_ro("runs", &StateShard::runs,
              "For each dimension, a list of index ranges (begin, end), which do not include\n"
              "``end``.")
      .def_ro("begin", &StateShard::begin, "Index of the block's first element in the sequence.")
      .def_ro("end", &StateShard::end, "Index after the block's last element in the sequence.")
      .def_ro("write_range", &StateShard::write_range,
              "The part of ``data`` that this rank writes to a checkpoint, as a pair of indices\n"
              "(begin, end). Ranks that hold the same elements divide the work of writing them.")
      .def_prop_ro(
          "data", [](const StateShard& shard) { return shard.data; },
          nb::sig("def data(self) -> typing.Any"),
          "The elements as a one-dimensional array that uses muonrt's memory. The array has the\n"
          "types that Optimizer.state() describes.");
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
      "An optimizer that updates sharded parameters with Muon and AdamW. One step updates all\n"
      "of them.\n\n"
      "Some methods are collective, which means that every rank of the communicator must call\n"
      "them. Only one thread at a time may use an optimizer. If a second thread calls a method\n"
      "in the meantime, the call raises InvalidStateError.");
  optimizer
      .def(nb::init<const std::vector<Param*>&, const std::vector<Group*>&, Comm*,
                    const nb::kwargs&>(),
           nb::arg("params"), nb::arg("groups"), nb::arg("comm").none() = nb::none(),
           nb::arg("settings"), nb::sig(made.c_str()),
           "Creates an optimizer. Collective over ``comm``. Without ``comm`` the optimizer has\n"
           "one rank.\n\n"
           "Every rank passes the same parameters in the same order, but with its own arrays.\n"
           "All arrays must be on the same device. The optimizer keeps the arrays alive.\n\n"
           "The keyword arguments are the fields of muonrt_optimizer_options_t,\n"
           "muonrt_tuning_options_t and muonrt_debug_options_t. Pass enum values as strings.\n"
           "Example: clip_norm=1.0, transport_dtype=\"bfloat16\", iteration_dtype=\"float32\",\n"
           "trace=True.\n\n"
           "You can also pass your own functions assign(info), gather(name, owner, local, full,\n"
           "stream) and redistribute(name, owner, full, local, stream). They select the owner\n"
           "of each matrix and exchange the data; see muonrt/distributed.h. The arguments\n"
           "async_parallelism (default: True) and prefetch_count (default: 1) control how the\n"
           "stages of a step overlap.\n\n"
           "assign returns a rank, or a list with one rank for each matrix of a stack. The\n"
           "arguments local and full are arrays in the transport dtype, with the types that\n"
           "state() describes. Their contents are valid only during the call, and full is None\n"
           "on all ranks except the owner. If a function raises an exception, every rank raises\n"
           "CallbackError. On the rank whose function raised it, the exception is the\n"
           "``__cause__`` of the CallbackError.\n\n"
           "If you omit device (\"host\" or \"cuda\") and device_index, the optimizer uses the\n"
           "device of the arrays.\n\n"
           "On CUDA, pass a ``comm`` that Comm.nccl() or Comm.staged() has created. Before the\n"
           "call, the parameters must have been written, or the work that writes them must be\n"
           "enqueued on the default stream.")
      .def("step", &Optimizer::step, nb::arg("lr"),
           nb::arg("inactive_params") = std::vector<int64_t>{}, nb::arg("grad_scale_inv") = 1.0,
           nb::arg("found_inf") = false, nb::arg("stream") = nb::none(),
           nb::arg("qk_logits").none() = nb::none(),
           nb::sig("def step(self, lr: float | collections.abc.Sequence[float], "
                   "inactive_params: collections.abc.Sequence[int] = [], "
                   "grad_scale_inv: typing.Any = 1.0, found_inf: typing.Any = False, "
                   "stream: int | None = None, qk_logits: typing.Any = None) -> StepReport"),
           "Runs one step, which updates every parameter or none. Collective. The call releases\n"
           "the GIL while the step runs. When it returns, the work of the step has ended, so\n"
           "every CUDA stream sees the new parameters.\n\n"
           ":param lr: the learning rate, or a list with one learning rate for each group.\n"
           ":param inactive_params: indices of the parameters that do not take part in this\n"
           "    step. The list must be equal on all ranks.\n"
           ":param grad_scale_inv: factor by which every gradient is multiplied, such as the\n"
           "    inverse of a loss scale. It is a number, or a float32 array with one element on\n"
           "    the optimizer's device.\n"
           ":param found_inf: if it is true on at least one rank, all ranks skip the step. It\n"
           "    is a bool, or a float32 array with one element on the optimizer's device, which\n"
           "    means true if the element is not 0.\n"
           ":param stream: on CUDA, the stream on which the gradients are written: a\n"
           "    cudaStream_t, as an integer. None selects the default stream.\n"
           ":param qk_logits: for QK-clip, a float32 array with the largest attention logit of\n"
           "    each query head on this rank. The heads of the lowest layer come first, then\n"
           "    those of the next layer, and so on; see qk_layers(). The element is -inf for a\n"
           "    head that this rank does not compute. The step uses the maximum over all ranks.\n"
           "    None means -inf for every head.")
      .def("step_async", &Optimizer::step_async, nb::arg("lr"),
           nb::arg("inactive_params") = std::vector<int64_t>{}, nb::arg("grad_scale_inv") = 1.0,
           nb::arg("found_inf") = false, nb::arg("stream") = nb::none(),
           nb::arg("qk_logits").none() = nb::none(),
           nb::sig("def step_async(self, lr: float | collections.abc.Sequence[float], "
                   "inactive_params: collections.abc.Sequence[int] = [], "
                   "grad_scale_inv: typing.Any = 1.0, found_inf: typing.Any = False, "
                   "stream: int | None = None, qk_logits: typing.Any = None) -> None"),
           "Enqueues one step and returns before the step has ended. Collective. The arguments\n"
           "are those of step(). Call wait() to complete the step. wait() returns the report,\n"
           "and raises an exception if the step has failed.\n\n"
           "On CUDA, work that you enqueue on ``stream`` after the call runs after the step. On\n"
           "the host, do not access parameters, and do not write gradients, until wait() has\n"
           "returned.\n\n"
           "If you call step(), step_async(), save(), save_begin(), load() or copy_state_from()\n"
           "while a step is in flight, the call first completes this step. Methods that bind\n"
           "arrays, change settings or return state raise InvalidStateError instead. See\n"
           "muonrt/step_async.h.")
      .def("wait", &Optimizer::wait, nb::sig("def wait(self) -> StepReport"),
           "Completes the step that step_async() has enqueued. Collective. The call releases\n"
           "the GIL. It raises the same exceptions as step(), and InvalidStateError if no step\n"
           "is in flight.")
      .def("set_grad", &Optimizer::set_grad, nb::arg("param"), nb::arg("grad").none(),
           nb::sig("def set_grad(self, param: str | int, grad: typing.Any) -> None"),
           "Binds an array as the gradient of a parameter, for all steps until you bind another\n"
           "one.\n\n"
           ":param param: name or index of the parameter.\n"
           ":param grad: the array, which the optimizer keeps alive. None means that the\n"
           "    parameter has no gradient until you bind one.")
      .def("set_grads", &Optimizer::set_grads, nb::arg("grads"),
           nb::sig("def set_grads(self, grads: collections.abc.Sequence[typing.Any]) -> None"),
           "Binds the gradients of all parameters, in the order of the parameters; see\n"
           "set_grad().")
      .def("_set_grad_addresses", &Optimizer::set_grad_addresses, nb::arg("addresses"),
           nb::arg("owners"),
           nb::sig("def _set_grad_addresses(self, addresses: collections.abc.Sequence[int], "
                   "owners: typing.Any) -> None"))
      .def("set_data", &Optimizer::set_data, nb::arg("param"), nb::arg("data"),
           nb::sig("def set_data(self, param: str | int, data: typing.Any) -> None"),
           "Binds another array to a parameter, and keeps the array alive. Not collective. Call\n"
           "it between steps.\n\n"
           "The new array must hold the same values as the previous one. If the values differ,\n"
           "call reset_masters() afterwards.\n\n"
           ":param param: name or index of the parameter.\n"
           ":param data: this rank's shard, with the same shape and dtype as the previous\n"
           "    array.")
      .def("set_group", &Optimizer::set_group, nb::arg("index"), nb::arg("settings"),
           nb::sig(changed.c_str()),
           "Changes settings of a group for all following steps. Every rank must make the same\n"
           "change before the same step.\n\n"
           ":param index: index of the group.\n\n"
           "The keyword arguments are those of Group.")
      .def("reset_masters", &Optimizer::reset_masters, nb::arg("params").none() = nb::none(),
           nb::sig("def reset_masters(self, params: "
                   "collections.abc.Sequence[str | int] | None = None) -> None"),
           "Resets master weights to the values of the parameters. Call this method after you\n"
           "have written parameters. Pass the same list on every rank.\n\n"
           ":param params: names or indices of the parameters. None selects all parameters.\n\n"
           "On CUDA, before this call, the parameters must have been written, or the work that\n"
           "writes them must be enqueued on the default stream.")
      .def_prop_rw("update_counts", &Optimizer::update_counts, &Optimizer::set_update_counts,
                   "For each parameter, the number of committed steps that have updated it.\n"
                   "AdamW uses these numbers for bias correction. If you restore state\n"
                   "yourself, set ``steps`` first and then these counts, because setting\n"
                   "``steps`` changes the counts. Set the same values on every rank.")
      .def("recover", &Optimizer::recover, nb::arg("survivors"),
           nb::arg("survivor_policy") = "majority",
           nb::sig("def recover(self, survivors: Comm, survivor_policy: str = 'majority') "
                   "-> tuple[str, int]"),
           "Brings the surviving ranks to the same state after a failed step: afterwards, all\n"
           "of them have committed the same steps. Collective over ``survivors``; see\n"
           "muonrt_optimizer_recover().\n\n"
           ":param survivors: a communicator of the surviving ranks, created after the failure.\n"
           ":param survivor_policy: \"majority\" requires more than half of the ranks, or\n"
           "    exactly half of them including rank 0. \"any\" accepts any number of survivors.\n"
           "    Use \"any\" only if you are certain that all other ranks have exited.\n"
           ":return: the outcome (\"none\", \"rolled_forward\" or \"discarded\"), and the\n"
           "    number of committed steps.")
      .def("copy_state_from", &Optimizer::copy_state_from, nb::arg("old").none(),
           nb::sig("def copy_state_from(self, old: Optimizer | None) -> None"),
           "Copies all parameters and the whole state of another optimizer to this one. The\n"
           "other optimizer may have different ranks and a different mesh. Collective; see\n"
           "muonrt_optimizer_copy_state().\n\n"
           ":param old: the other optimizer, even if one of its steps has failed. Pass None on\n"
           "    a rank that does not have this optimizer.")
      .def("clipped_heads", &Optimizer::clipped_heads,
           nb::sig("def clipped_heads(self) -> list[tuple[int, int]]"),
           "Returns the heads that QK-clip has clipped in the last committed step, as pairs\n"
           "(layer, head).")
      .def("qk_layers", &Optimizer::qk_layers,
           nb::sig("def qk_layers(self) -> list[tuple[int, int]]"),
           "Returns the layers to which the elements of ``qk_logits`` belong, in this order, as\n"
           "pairs (layer, number of query heads).")
      .def("find_param", &Optimizer::find_param, nb::arg("name"),
           nb::sig("def find_param(self, name: str | int) -> int"),
           "Returns the index of a parameter, given by name or index.")
      .def_ro("names", &Optimizer::names, "Names of all parameters, in their order.")
      .def_prop_rw("steps", &Optimizer::steps, &Optimizer::set_steps,
                   "Number of committed steps. If you set it, the update count of every\n"
                   "parameter is set, too. Set the same number on every rank.")
      .def(
          "describe",
          [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_describe_plan, json); },
          nb::arg("json") = false, nb::sig("def describe(self, json: bool = False) -> str"),
          "Returns a description of the plan, as text or as JSON. It contains the owners, the\n"
          "chunks, the bytes that are sent, the memory, and the balance of work between the\n"
          "ranks.")
      .def(
          "trace", [](Optimizer& o, bool json) { return o.text(muonrt_optimizer_get_trace, json); },
          nb::arg("json") = false, nb::sig("def trace(self, json: bool = False) -> str"),
          "Returns a text that lists the stages of the last step in their order. If json is\n"
          "True, returns a Chrome trace with the times of the stages instead. This requires an\n"
          "optimizer that was created with trace=True.")
      .def("counters", &Optimizer::counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Returns the counters of this rank since the optimizer was created; see\n"
           "muonrt_counters_t.")
      .def("memory", &Optimizer::memory, nb::sig("def memory(self) -> dict[str, int]"),
           "Returns the planned and the allocated memory of this rank in bytes; see\n"
           "muonrt_memory_t.")
      .def("health", &Optimizer::health, nb::sig("def health(self) -> dict[str, typing.Any]"),
           "Returns the statistics of the last step that collected them. The setting\n"
           "health_every determines which steps collect statistics; see muonrt_health_t and\n"
           "muonrt_matrix_health_t.")
      .def("close", &Optimizer::close, nb::sig("def close(self) -> None"),
           "Destroys the optimizer. If arrays that use its memory still exist, the memory is\n"
           "freed with the last of them.")
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
