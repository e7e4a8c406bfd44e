#include "optimizer.hpp"

namespace binding {

namespace {

/// Returns an array over the step's memory. If `data` is NULL but the array would have elements,
/// returns None. The array keeps `owner` alive, so the memory stays valid after the call, but its
/// values may change.
nb::object view_of(const CallerFunctions& f, const void* data, const std::vector<size_t>& shape,
                   bool writable, const nb::object& owner) {
  static float nothing = 0.0f;
  size_t numel = 1;
  for (const size_t n : shape) numel *= n;
  if (data == nullptr && numel > 0) return nb::none();
  const nb::dlpack::dtype type =
      f.transport_dtype == MUONRT_DTYPE_F32 ? nb::dtype<float>() : nb::dtype<uint16_t>();
  if (f.place.on_cuda())
    return nb::cast(nb::ndarray<nb::device::cuda>(const_cast<void*>(data), shape.size(),
                                                  shape.data(), owner, nullptr, type,
                                                  nb::device::cuda::value, f.place.index));
  const void* const memory = numel == 0 ? &nothing : data;
  if (writable)
    return nb::cast(nb::ndarray<nb::numpy>(const_cast<void*>(memory), shape.size(), shape.data(),
                                           owner, nullptr, type));
  return nb::cast(
      nb::ndarray<nb::numpy, nb::ro>(memory, shape.size(), shape.data(), owner, nullptr, type));
}

/// Acquires the GIL and runs `call`. Stores the first exception, which becomes the cause of the
/// step's error. Returns 1 if `call` has thrown an exception, otherwise 0.
int as_code(CallerFunctions& f, const std::function<void()>& call) {
  const GilAcquired acquire;
  try {
    or_sleep(call);
    return 0;
  } catch (nb::python_error& error) {
    if (!f.raised) f.raised.emplace(error);
  } catch (const muonrt::Error& error) {
    or_sleep([&] { set_python_error(error); });
    nb::python_error own;
    if (!f.raised) f.raised.emplace(std::move(own));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    nb::python_error own;
    if (!f.raised) f.raised.emplace(std::move(own));
  }
  return 1;
}

/// Sets the owners from `given`, which is a rank or a sequence of ranks.
void take_owners(CallerFunctions::Tensor& tensor, const AssignInfo& info, nb::handle given,
                 int32_t* owner) {
  std::vector<int32_t> owners;
  int32_t one = -1;
  if (nb::try_cast(given, one)) {
    owners = {one};
  } else if (!nb::try_cast(given, owners) ||
             (owners.size() != 1 && owners.size() != info.matrix_holders.size())) {
    const std::string matrices = cat(info.matrix_holders.size());
    refuse(kInvalidArg,
           cat("param '", info.name, "': assign returned ", nb::repr(given).c_str(),
               info.matrix_holders.size() == 1
                   ? std::string("; return a rank")
                   : cat(", but the stack has ", matrices,
                         " matrices; return a rank, or a list of ", matrices, " ranks")));
  }
  std::copy(owners.begin(), owners.end(), owner);
  tensor.owners = std::move(owners);
}

int call_assign(void* state, int64_t param, const muonrt_assign_info_t* c, int32_t* owner) {
  auto& f = *static_cast<CallerFunctions*>(state);
  return as_code(f, [&] {
    CallerFunctions::Tensor& tensor = f.tensors[static_cast<size_t>(param)];
    AssignInfo info;
    info.name = c->name;
    info.index = param;
    info.shape.assign(c->shape, c->shape + c->ndim);
    info.holders.assign(c->holders, c->holders + c->n_holders);
    info.world = c->world;
    for (int64_t i = 0; i < c->n_matrices; ++i)
      info.matrix_holders.emplace_back(c->matrix_holders + c->matrix_begins[i],
                                       c->matrix_holders + c->matrix_begins[i + 1]);
    take_owners(tensor, info, f.assign(info), owner);
  });
}

/// Returns the shape of `full` for an owner. It may be smaller than the tensor, because an owner
/// may own only some of the matrices in a stack.
std::vector<size_t> full_shape(const CallerFunctions::Tensor& tensor, int32_t owner) {
  const auto mine =
      static_cast<size_t>(std::count(tensor.owners.begin(), tensor.owners.end(), owner));
  if (mine == tensor.owners.size()) return tensor.full;
  std::vector<size_t> out(tensor.full.begin() + tensor.batch_dims, tensor.full.end());
  out.insert(out.begin(), mine);
  return out;
}

int call_exchange(CallerFunctions& f, bool gathers, int64_t param, int32_t owner, const void* local,
                  const void* full, void* stream) {
  return as_code(f, [&] {
    const CallerFunctions::Tensor& tensor = f.tensors[static_cast<size_t>(param)];
    nb::object kept = nb::none();
    if (const auto held = f.held.lock())
      kept = nb::capsule(new std::shared_ptr<Held>(held), [](void* pointer) noexcept {
        delete static_cast<std::shared_ptr<Held>*>(pointer);
      });
    const nb::object shard = view_of(f, local, tensor.local, !gathers, kept);
    const nb::object whole = view_of(f, full, full_shape(tensor, owner), gathers, kept);
    const nb::object on =
        stream == nullptr ? nb::none() : nb::object(nb::int_(reinterpret_cast<uintptr_t>(stream)));
    const nb::object returned = gathers ? f.gather(tensor.name, owner, shard, whole, on)
                                        : f.redistribute(tensor.name, owner, whole, shard, on);
    if (returned.is_none()) return;
    refuse(kInvalidArg, cat("param '", tensor.name, "': ", gathers ? "gather" : "redistribute",
                            " returned a ", nb::type_name(returned.type()).c_str(),
                            ", which would be ignored; write to the array ",
                            gathers ? "full" : "local", ", and return None"));
  });
}

int call_gather(void* state, int64_t param, int32_t owner, const void* local, void* full,
                void* stream) {
  return call_exchange(*static_cast<CallerFunctions*>(state), true, param, owner, local, full,
                       stream);
}

int call_redistribute(void* state, int64_t param, int32_t owner, const void* full, void* local,
                      void* stream) {
  return call_exchange(*static_cast<CallerFunctions*>(state), false, param, owner, local, full,
                       stream);
}

}  // namespace

std::unique_ptr<CallerFunctions> caller_functions(Options& options,
                                                  const std::vector<Param*>& params,
                                                  const Place& place) {
  if (!options.has_distributed) return nullptr;
  auto out = std::make_unique<CallerFunctions>();
  out->assign = options.assign;
  out->gather = options.gather;
  out->redistribute = options.redistribute;
  out->transport_dtype = options.transport_dtype;
  out->place = place;
  for (const Param* param : params) {
    CallerFunctions::Tensor& tensor = out->tensors.emplace_back();
    tensor.name = param->name;
    tensor.local.assign(param->data.shape.begin(), param->data.shape.end());
    tensor.full.assign(param->shape.begin(), param->shape.end());
    const int32_t batch_dims = param->settings.batch_dims;
    tensor.batch_dims = batch_dims > 0 ? batch_dims : param->settings.view == MUONRT_VIEW_STACK;
  }
  muonrt_distributed_config_t& c = options.caller;
  c.state = out.get();
  if (!options.assign.is_none()) c.assign = call_assign;
  if (!options.gather.is_none()) c.gather = call_gather;
  if (!options.redistribute.is_none()) c.redistribute = call_redistribute;
  options.distributed = &c;
  return out;
}

void raise_with_cause(const muonrt::Error& error, CallerFunctions& functions) {
  const nb::python_error cause = std::move(*functions.raised);
  functions.raised.reset();
  set_python_error(error);
  const nb::python_error raised;
  PyException_SetCause(raised.value().ptr(), nb::borrow(cause.value()).release().ptr());
  throw nb::python_error(raised);
}

void bind_distributed(nb::module_& module) {
  nb::class_<AssignInfo>(module, "AssignInfo",
                         "The description of a parameter that the function ``assign`` receives;\n"
                         "see muonrt_assign_info_t.")
      .def_ro("name", &AssignInfo::name, "Name of the parameter.")
      .def_ro("index", &AssignInfo::index, "Index of the parameter in the optimizer.")
      .def_ro("shape", &AssignInfo::shape, "Shape of the whole tensor.")
      .def_ro("holders", &AssignInfo::holders,
              "The ranks that hold a part of the tensor, in ascending order.")
      .def_ro("world", &AssignInfo::world, "Number of ranks of the communicator.")
      .def_ro("matrix_holders", &AssignInfo::matrix_holders,
              "For each matrix, the ranks that hold a part of it. A parameter that is not a stack\n"
              "has one matrix.");
}

}  // namespace binding
