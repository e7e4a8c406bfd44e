#include "binding.hpp"

namespace binding {

namespace {

constexpr const char* kGroupSettings[] = {
    "coefficients",  "steps",           "lower_bound", "cushion",       "safety",
    "safety_mode",   "normalize",       "custom",      "normalize_eps", "form",
    "gram_restarts", "iteration_dtype", "row_scaling", "renormalize"};
constexpr const char* kOptions[] = {"threads", "symmetric", "portable_gemm"};

/// An array from another framework, with any strides, and the C struct that describes it.
struct Strided {
  Exported exported;
  std::vector<int64_t> shape, strides;
  muonrt_dltensor_t c{};

  Strided(const std::string& what, nb::handle object, bool writable)
      : exported(export_array(what, object, "", writable)) {
    const nb::ndarray<nb::ro>& array = exported.array;
    for (size_t i = 0; i < array.ndim(); ++i) {
      shape.push_back(static_cast<int64_t>(array.shape(i)));
      strides.push_back(array.stride(i));
    }
    c.data = static_cast<char*>(const_cast<void*>(array.data()));
    c.device_type = array.device_type();
    c.device_id = array.device_id();
    c.ndim = static_cast<int32_t>(shape.size());
    c.type_code = array.dtype().code;
    c.type_bits = array.dtype().bits;
    c.type_lanes = array.dtype().lanes;
    if (exported.dtype == "bfloat16") c.type_code = 4;  // bf16, which the array exports as uint16
    c.shape = shape.data();
    c.strides = strides.data();
  }
  Strided(const Strided&) = delete;
  Strided& operator=(const Strided&) = delete;
};

class Orthogonalizer {
 public:
  Orthogonalizer(bool cuda, int32_t index, const nb::kwargs& settings) {
    nb::kwargs of_group = nb::steal<nb::kwargs>(PyDict_New());
    nb::kwargs of_options = nb::steal<nb::kwargs>(PyDict_New());
    std::string known;
    const auto take = [&](const char* name, nb::kwargs& to) {
      known += cat(known.empty() ? " " : ", ", name);
      if (settings.contains(name)) to[name] = settings[name];
    };
    for (const char* name : kGroupSettings) take(name, of_group);
    for (const char* name : kOptions) take(name, of_options);
    for (auto [key, value] : settings)
      if (!of_group.contains(key) && !of_options.contains(key))
        throw nb::type_error(
            cat("there is no setting '", nb::cast<std::string>(key), "'; use one of", known)
                .c_str());
    Group group;
    muonrt_group_init_muon(&group.settings);
    set_group(group, of_group);
    Options options;
    set_options(options, of_options);
    options.device = cuda ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
    options.device_index = index;
    const GilReleased release;
    core_ = std::make_unique<muonrt::Orthogonalizer>(&group.settings, options.get());
  }
  ~Orthogonalizer() {
    const GilReleased release;
    core_.reset();
  }

  void orthogonalize(nb::handle out, nb::handle x, uintptr_t stream) {
    const Strided to("out", out, true), from("x", x, false);
    const Busy mine(busy_, "the orthogonalizer");
    bool finite = true;
    {
      const GilReleased release;
      finite = core_->orthogonalize(to.c, from.c, reinterpret_cast<void*>(stream));
    }
    if (!finite) throw muonrt::Error(MUONRT_SKIPPED);
  }
  void symmetric_product(nb::handle c, double alpha, nb::handle a, double beta, nb::object d,
                         uintptr_t stream) {
    const Strided to("out", c, true), from("a", a, false);
    std::optional<Strided> added;
    if (!d.is_none()) added.emplace("d", d, false);
    const Busy mine(busy_, "the orthogonalizer");
    const GilReleased release;
    core_->symmetric_product(to.c, alpha, from.c, beta, added ? &added->c : nullptr,
                             reinterpret_cast<void*>(stream));
  }

 private:
  std::unique_ptr<muonrt::Orthogonalizer> core_;
  std::atomic<bool> busy_{false};
};

}  // namespace

void bind_orthogonalize(nb::module_& module) {
  nb::class_<Orthogonalizer>(module, "Orthogonalizer",
                             "Internal. Use muonrt.orthogonalize() and\n"
                             "muonrt.symmetric_product() instead.")
      .def(nb::init<bool, int32_t, const nb::kwargs&>(), nb::arg("cuda"), nb::arg("device_index"),
           nb::arg("settings"),
           nb::sig("def __init__(self, cuda: bool, device_index: int, **settings: typing.Any) "
                   "-> None"))
      .def("orthogonalize", &Orthogonalizer::orthogonalize, nb::arg("out"), nb::arg("x"),
           nb::arg("stream") = 0,
           nb::sig("def orthogonalize(self, out: typing.Any, x: typing.Any, stream: int = 0) "
                   "-> None"))
      .def("symmetric_product", &Orthogonalizer::symmetric_product, nb::arg("out"),
           nb::arg("alpha"), nb::arg("a"), nb::arg("beta"), nb::arg("d").none(),
           nb::arg("stream") = 0,
           nb::sig("def symmetric_product(self, out: typing.Any, alpha: float, a: typing.Any, "
                   "beta: float, d: typing.Any, stream: int = 0) -> None"));
}

}  // namespace binding
