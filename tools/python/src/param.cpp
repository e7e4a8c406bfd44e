#include <algorithm>

#include "binding.hpp"

namespace binding {
namespace {

std::string text_of(const nb::object& object) {
  return nb::steal<nb::str>(PyObject_Str(object.ptr())).c_str();
}

std::string dtype_text(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(dtype.code);
  const char* kind = code == Code::Float    ? "float"
                     : code == Code::Bfloat ? "bfloat"
                     : code == Code::Int    ? "int"
                     : code == Code::UInt   ? "uint"
                                            : "a type of bits ";
  return cat(kind, static_cast<int>(dtype.bits));
}

bool row_major(const nb::ndarray<nb::ro>& array) {
  if (array.size() == 0) return true;
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

muonrt_dtype_t dtype_of_array(const std::string& what, const nb::dlpack::dtype& found,
                              const std::string& named) {
  using Code = nb::dlpack::dtype_code;
  const auto is = [&](Code code, int bits) {
    return static_cast<Code>(found.code) == code && found.bits == bits && found.lanes == 1;
  };
  const muonrt_dtype_t named_dtype = named.empty() ? 0 : dtype_of(named);
  if (is(Code::Float, 32) && (named_dtype == 0 || named_dtype == MUONRT_DTYPE_F32))
    return MUONRT_DTYPE_F32;
  if (is(Code::Bfloat, 16) && (named_dtype == 0 || named_dtype == MUONRT_DTYPE_BF16))
    return MUONRT_DTYPE_BF16;
  if (is(Code::UInt, 16) && named_dtype == MUONRT_DTYPE_BF16) return MUONRT_DTYPE_BF16;
  refuse(kInvalidArg, cat(what, " has dtype ", dtype_text(found),
                          named.empty() ? "" : cat(" (dtype='", named, "' was given)"),
                          "; pass float32, bfloat16, or uint16 with dtype='bfloat16'"));
}

Place place_of(const std::string& what, const nb::ndarray<nb::ro>& array) {
  const int type = array.device_type();
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return {};
  if (type == nb::device::cuda::value || type == nb::device::cuda_managed::value)
    return {MUONRT_DEVICE_CUDA, array.device_id()};
  refuse(MUONRT_ERROR_NOT_SUPPORTED, cat(what, " is on a device of DLPack's type ", type,
                                         "; pass memory of the host or of a CUDA device"));
}

}  // namespace

namespace {

/// Sets the shape of the shard. Rejects data that cannot be a shard of the tensor.
void fill_shard(ParamView& view, const Param& param) {
  view.local = param.data.shape;
  if (param.layout && param.layout->kind == MUONRT_LAYOUT_FLAT) {
    if (view.local.size() != 1)
      refuse(kInvalidArg, cat("param '", param.name, "': data of a flat range has shape ",
                              shape_text(view.local), "; pass an array of one dimension"));
    view.local.resize(std::max<size_t>(param.shape.size(), 1), 1);
  }
  if (view.local.size() != param.shape.size())
    refuse(kInvalidArg, cat("param '", param.name, "': data has shape ", shape_text(view.local),
                            ", but the whole tensor has shape ", shape_text(param.shape),
                            "; pass a shard with the same number of dimensions"));
  view.c.local_shape = view.local.data();
}

}  // namespace

void fill(ParamView& view, const Param& param) {
  view.c = param.settings;
  view.c.name = param.name.c_str();
  view.c.ndim = static_cast<int32_t>(param.shape.size());
  view.c.shape = param.shape.data();
  view.c.data = param.data.data;
  view.c.grad = param.grad ? param.grad->data : nullptr;
  if (param.layout) view.c.layout = view.layout.emplace(*param.layout).get();
  if (param.grad_layout) view.c.grad_layout = view.grad_layout.emplace(*param.grad_layout).get();
  if (param.data.held.is_valid()) fill_shard(view, param);
  for (const Part& part : param.parts) {
    muonrt_part_t c = part.settings;
    c.name = part.name.empty() ? nullptr : part.name.c_str();
    c.rows = part.rows ? part.rows->data() : nullptr;
    c.n_rows = part.rows ? static_cast<int64_t>(part.rows->size()) : 0;
    c.cols = part.cols ? part.cols->data() : nullptr;
    c.n_cols = part.cols ? static_cast<int64_t>(part.cols->size()) : 0;
    view.parts.push_back(c);
  }
  view.c.parts = view.parts.empty() ? nullptr : view.parts.data();
  view.c.n_parts = static_cast<int64_t>(view.parts.size());
  view.c.owners = param.owners.empty() ? nullptr : param.owners.data();
  view.c.n_owners = static_cast<int64_t>(param.owners.size());
  if (param.qk_clip) {
    view.qk_clip = param.qk_clip->settings;
    view.qk_clip.select = param.qk_clip->select.empty() ? nullptr : param.qk_clip->select.data();
    view.c.qk_clip = &view.qk_clip;
  }
}

void require_place(const std::string& what, const Array& array, const Place& place,
                   const std::string& whose) {
  if (array.place == place) return;
  refuse(kInvalidArg, cat(what, " is on ", array.place.text(), ", but ", whose, " is on ",
                          place.text(), "; pass arrays of one device"));
}

Exported export_array(const std::string& what, nb::handle object, const std::string& dtype,
                      bool writable) {
  nb::object source = nb::borrow(object);
  Exported out;
  out.dtype = dtype;
  // Torch exports only detached tensors.
  if (nb::hasattr(source, "detach")) source = source.attr("detach")();
  // Arrays with the bfloat16 of ml_dtypes support neither the buffer protocol nor DLPack.
  if (nb::hasattr(source, "dtype") && nb::hasattr(source, "view") &&
      text_of(source.attr("dtype")) == "bfloat16") {
    source = source.attr("view")("uint16");
    out.dtype = "bfloat16";
  }
  if (!nb::try_cast(source, out.array, false)) {
    // This call raises an exception with the reason.
    if (nb::hasattr(source, "__dlpack__")) source.attr("__dlpack__")();
    refuse(kInvalidArg, cat(what, " has type ", nb::type_name(source.type()).c_str(),
                            ", which supports neither DLPack nor the buffer protocol; pass an "
                            "array of NumPy, PyTorch or another framework"));
  }
  nb::ndarray<> mutable_array;
  if (writable && !nb::try_cast(source, mutable_array, false))
    refuse(kInvalidArg, cat(what, " is read-only, but muonrt writes to it; pass a writable array"));
  return out;
}

Array take_array(const std::string& what, nb::handle object, const std::string& dtype,
                 bool writable) {
  Exported exported = export_array(what, object, dtype, writable);
  Array out;
  out.held = std::move(exported.array);
  for (size_t i = 0; i < out.held.ndim(); ++i)
    out.shape.push_back(static_cast<int64_t>(out.held.shape(i)));
  out.place = place_of(what, out.held);
  out.dtype = dtype_of_array(what, out.held.dtype(), exported.dtype);
  if (!row_major(out.held)) {
    std::vector<int64_t> strides;
    for (size_t i = 0; i < out.held.ndim(); ++i) strides.push_back(out.held.stride(i));
    refuse(kInvalidArg,
           cat(what, " has strides ", shape_text(strides), " for shape ", shape_text(out.shape),
               ", so it is not row-major and contiguous; pass a contiguous array"));
  }
  out.data = out.held.size() == 0 ? nullptr : const_cast<void*>(out.held.data());
  return out;
}

namespace {

void init(Param* self, const std::string& name, nb::object data, nb::object grad,
          std::optional<std::vector<int64_t>> shape, const Layout* layout, int32_t group,
          const std::string& dtype, const std::string& grad_dtype, const std::string& view,
          const std::string& master_kind, nb::object master,
          const std::variant<int32_t, std::vector<int32_t>>& owner, double lr_factor,
          const Layout* grad_layout, bool transposed, int32_t batch_dims, int32_t row_dims,
          const std::vector<Part>& parts, const QkClip* qk_clip, const std::string& normuon_axis,
          int32_t priority) {
  const std::string what = cat("param '", name, "': ");
  Param out;
  out.name = name;
  if (data.is_none()) {
    if (!shape || dtype.empty())
      refuse(kInvalidArg,
             what + "data is None, but shape or dtype is missing; pass both for a plan");
    out.data.dtype = dtype_of(dtype);
  } else {
    out.data = take_array(what + "data", data, dtype, true);
  }
  if (layout != nullptr && !shape)
    refuse(kInvalidArg,
           what + "layout is set, but shape is None; pass the shape of the whole tensor");
  out.shape = shape ? *shape : out.data.shape;
  if (layout != nullptr) out.layout = *layout;
  if (grad_layout != nullptr) out.grad_layout = *grad_layout;
  muonrt_param_init(&out.settings);
  out.settings.group = group;
  out.settings.dtype = out.data.dtype;
  out.settings.view = view_of(view);
  out.settings.transposed = transposed;
  out.settings.batch_dims = batch_dims;
  out.settings.row_dims = row_dims;
  out.settings.normuon_axis = normuon_of(normuon_axis);
  out.settings.priority = priority;
  out.parts = parts;
  if (qk_clip != nullptr) out.qk_clip = *qk_clip;
  if (const auto* const owners = std::get_if<std::vector<int32_t>>(&owner))
    out.owners = *owners;
  else
    out.settings.owner = std::get<int32_t>(owner);
  out.settings.lr_factor = lr_factor;
  out.settings.master_kind = master_of(master_kind);
  if (!master.is_none()) {
    out.master = take_array(what + "master", master, "", true);
    if (out.master.dtype != MUONRT_DTYPE_F32)
      refuse(kInvalidArg, what + "master has dtype bfloat16; pass a float32 array");
    if (out.master.shape != out.data.shape)
      refuse(kInvalidArg,
             cat(what, "master has shape ", shape_text(out.master.shape), ", but data has shape ",
                 shape_text(out.data.shape), "; pass a master of the same shape"));
    out.settings.master_kind = MUONRT_MASTER_CALLER;
    out.settings.master = static_cast<float*>(out.master.data);
  }
  out.settings.grad_dtype = grad_dtype.empty() ? out.data.dtype : dtype_of(grad_dtype);
  if (!grad.is_none()) {
    out.grad =
        take_array(what + "grad", grad,
                   out.settings.grad_dtype == MUONRT_DTYPE_BF16 ? "bfloat16" : "float32", false);
    if (grad_layout == nullptr && out.grad->shape != out.data.shape)
      refuse(kInvalidArg, cat(what, "grad has shape ", shape_text(out.grad->shape),
                              ", but data has shape ", shape_text(out.data.shape),
                              "; pass a gradient of the same shape, or set grad_layout"));
  }
  new (self) Param(std::move(out));
}

}  // namespace

Place place_of(const std::vector<Param*>& params, Options& options, const nb::kwargs& settings) {
  const std::string by_setting = "the optimizer";
  std::string whose = settings.contains("device") ? by_setting : "";
  Place place{options.device, options.device_index};
  const auto compare = [&](const Param& param, const char* which, const Array& array) {
    if (!array.held.is_valid()) return;
    const std::string what = cat("param '", param.name, "': ", which);
    if (whose.empty()) {
      const bool numbered = settings.contains("device_index") && array.place.on_cuda();
      whose = numbered ? by_setting : what;
      place = {array.place.device, numbered ? place.index : array.place.index};
    }
    // If the caller has set only `device`, the arrays determine the index of the device.
    if (whose == by_setting && !settings.contains("device_index") && place.on_cuda() &&
        array.place.on_cuda()) {
      place.index = array.place.index;
      whose = what;
    }
    require_place(what, array, place, whose);
  };
  for (const Param* param : params) {
    compare(*param, "data", param->data);
    compare(*param, "master", param->master);
    if (param->grad) compare(*param, "grad", *param->grad);
  }
  options.device = place.device;
  options.device_index = place.index;
  return place;
}

void bind_param(nb::module_& module) {
  nb::class_<Param>(module, "Param",
                    "A parameter with the arrays of this rank; see muonrt_param_t.")
      .def("__init__", &init, nb::arg("name"), nb::arg("data").none(),
           nb::arg("grad").none() = nb::none(), nb::kw_only(), nb::arg("shape") = nb::none(),
           nb::arg("layout").none() = nb::none(), nb::arg("group") = 0, nb::arg("dtype") = "",
           nb::arg("grad_dtype") = "", nb::arg("view") = "none", nb::arg("master_kind") = "auto",
           nb::arg("master").none() = nb::none(), nb::arg("owner") = -1, nb::arg("lr_factor") = 1.0,
           nb::arg("grad_layout").none() = nb::none(), nb::arg("transposed") = false,
           nb::arg("batch_dims") = 0, nb::arg("row_dims") = 0,
           nb::arg("parts") = std::vector<Part>{}, nb::arg("qk_clip").none() = nb::none(),
           nb::arg("normuon_axis") = "", nb::arg("priority") = 0,
           nb::sig(
               "def __init__(self, name: str, data: typing.Any, grad: typing.Any = None, *, "
               "shape: collections.abc.Sequence[int] | None = None, layout: Layout | None = None, "
               "group: int = 0, dtype: str = '', grad_dtype: str = '', view: str = 'none', "
               "master_kind: str = 'auto', master: typing.Any = None, "
               "owner: int | collections.abc.Sequence[int] = -1, lr_factor: float = 1.0, "
               "grad_layout: Layout | None = None, "
               "transposed: bool = False, batch_dims: int = 0, row_dims: int = 0, "
               "parts: collections.abc.Sequence[Part] = [], qk_clip: QkClip | None = None, "
               "normuon_axis: str = '', priority: int = 0) -> None"),
           "Describes a parameter.\n\n"
           ":param name: the name of the parameter, which must be unique in the optimizer.\n"
           ":param data: this rank's shard. It is a float32 or bfloat16 array, row-major and\n"
           "    contiguous, on the host or on a CUDA device. Steps write to it. You may pass\n"
           "    None only if the parameter is for a muonrt.Plan.\n"
           ":param grad: the gradient. It has the same shape as data, unless grad_layout is\n"
           "    set. None means that you bind a gradient later.\n"
           ":param shape: shape of the whole tensor, required if layout is set.\n"
           ":param layout: how the tensor is distributed. None means that it is replicated over\n"
           "    all ranks.\n"
           ":param group: index of the parameter's group.\n"
           ":param dtype: \"bfloat16\" if the elements of data are the bits of bfloat16\n"
           "    numbers, stored as uint16. Required if data is None.\n"
           ":param grad_dtype: dtype of the gradient. By default it is the dtype of data.\n"
           ":param view: how the dimensions form matrices. With \"none\", the tensor is a\n"
           "    matrix. With \"stack\", its three dimensions are experts, rows and columns.\n"
           "    With \"flatten\", all dimensions after the first are merged into the columns.\n"
           ":param master_kind: how muonrt keeps the bits of the float32 weights that a\n"
           "    bfloat16 parameter cannot represent: \"none\", \"owned\" (float32 master\n"
           "    weights), \"remainder\" or \"stochastic\"; see muonrt_master_kind_t. \"auto\"\n"
           "    means \"owned\" for bfloat16 parameters, and \"none\" for float32 parameters.\n"
           ":param master: float32 master weights in your own memory, with the shape of data.\n"
           ":param owner: the rank that orthogonalizes the parameter, or a list with one rank\n"
           "    for each matrix of a stack. With -1, muonrt chooses.\n"
           ":param lr_factor: factor by which the group's learning rate is multiplied.\n"
           ":param grad_layout: layout of the gradient, if it differs from layout.\n"
           ":param transposed: True if matrices are stored as inputs x outputs, False if they\n"
           "    are stored as outputs x inputs.\n"
           ":param batch_dims: number of leading dimensions that index the matrices of a stack,\n"
           "    as an alternative to view.\n"
           ":param row_dims: number of dimensions after the batch_dims dimensions that are\n"
           "    merged into the rows. 0 means 1.\n"
           ":param parts: parts that Muon orthogonalizes separately, such as Q, K and V of a\n"
           "    fused weight. They must cover the whole matrix.\n"
           ":param qk_clip: settings of QK-clip.\n"
           ":param normuon_axis: axis of NorMuon: \"rows\", \"columns\" or \"longer\". By\n"
           "    default it is the axis of the group.\n"
           ":param priority: parameters with lower numbers are exchanged first in a step.")
      .def_ro("name", &Param::name)
      .def_ro("shape", &Param::shape)
      .def("__repr__", [](const Param& param) {
        return cat("Param('", param.name, "', shape=", shape_text(param.shape), ")");
      });
}

}  // namespace binding
