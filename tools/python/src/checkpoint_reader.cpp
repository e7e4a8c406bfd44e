#include <nanobind/stl/filesystem.h>

#include "binding.hpp"

namespace binding {

namespace {

using Path = std::filesystem::path;

/// A tensor of a checkpoint; see muonrt_checkpoint_tensor_t.
struct CheckpointTensor {
  std::string param, kind, dtype, role, momentum_kind;
  std::vector<int64_t> shape;
  muonrt_checkpoint_tensor_t c;
};

std::string kind_word(muonrt_state_kind_t kind) {
  return kind == MUONRT_STATE_PARAM ? "param" : state_word(kind);
}

class Checkpoint {
 public:
  Checkpoint(const Path& folder, const std::optional<Path>& manifest)
      : checkpoint_(std::in_place, folder.string(), manifest ? manifest->string() : "") {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  static std::vector<std::string> list_manifests(const Path& folder) {
    return muonrt::Checkpoint::list(folder.string());
  }
  muonrt_checkpoint_info_t info() {
    Busy busy(busy_, "the checkpoint");
    return get().info();
  }
  std::string manifest() {
    Busy busy(busy_, "the checkpoint");
    return get().manifest();
  }
  std::vector<std::string> problems() {
    Busy busy(busy_, "the checkpoint");
    return get().problems();
  }
  void verify() {
    Busy busy(busy_, "the checkpoint");
    muonrt::Checkpoint& checkpoint = get();
    const GilReleased release;
    checkpoint.verify();
  }
  std::vector<CheckpointTensor> tensors() {
    Busy busy(busy_, "the checkpoint");
    muonrt::Checkpoint& checkpoint = get();
    const GilReleased release;
    std::vector<CheckpointTensor> out;
    for (int64_t i = 0; i < checkpoint.info().n_tensors; ++i) out.push_back(tensor(checkpoint, i));
    return out;
  }
  nb::object read(const std::string& param, const std::string& kind) {
    Busy busy(busy_, "the checkpoint");
    muonrt::Checkpoint& checkpoint = get();
    const auto c_kind =
        static_cast<enum muonrt_state_kind>(kind == "param" ? MUONRT_STATE_PARAM : state_of(kind));
    std::unique_ptr<std::vector<unsigned char>> data;
    CheckpointTensor t;
    {
      const GilReleased release;
      const int64_t index = checkpoint.find_tensor(param, c_kind);
      t = tensor(checkpoint, index);
      data = std::make_unique<std::vector<unsigned char>>(checkpoint.read(index));
    }
    data->reserve(1);  // an array without elements also needs an address
    const std::vector<size_t> shape(t.shape.begin(), t.shape.end());
    unsigned char* const elements = data->data();
    nb::capsule owner(data.get(), [](void* pointer) noexcept {
      delete static_cast<std::vector<unsigned char>*>(pointer);
    });
    static_cast<void>(data.release());
    return nb::cast(nb::ndarray<nb::numpy>(
        elements, shape.size(), shape.data(), owner, nullptr,
        t.c.dtype == MUONRT_DTYPE_F32 ? nb::dtype<float>() : nb::dtype<uint16_t>()));
  }
  void close() {
    Busy busy(busy_, "the checkpoint");
    checkpoint_.reset();
  }

 private:
  muonrt::Checkpoint& get() {
    if (!checkpoint_) refuse(MUONRT_ERROR_INVALID_STATE, "the checkpoint is closed");
    return *checkpoint_;
  }
  static CheckpointTensor tensor(muonrt::Checkpoint& checkpoint, int64_t index) {
    const muonrt_checkpoint_tensor_t c = checkpoint.tensor(index);
    return {c.param,
            kind_word(c.kind),
            c.dtype == MUONRT_DTYPE_F32    ? "float32"
            : c.dtype == MUONRT_DTYPE_BF16 ? "bfloat16"
                                           : "uint16",
            c.role == MUONRT_ROLE_MUON ? "muon" : "adamw",
            c.momentum_kind == MUONRT_MOMENTUM_HEAVY_BALL ? "heavy_ball" : "ema",
            {c.shape, c.shape + c.ndim},
            c};
  }

  std::optional<muonrt::Checkpoint> checkpoint_;
  std::atomic<bool> busy_{false};
};

/// Adds a property that reads a field of the C struct.
template <class Class, class Get>
void add_field(Class& type, const char* name, const char* word, Get get, const char* doc) {
  const std::string sig = cat("def ", name, "(self) -> ", word);
  type.def_prop_ro(name, get, nb::sig(sig.c_str()), doc);
}

void bind_tensor(nb::module_& module) {
  using T = CheckpointTensor;
  nb::class_<T> type(module, "CheckpointTensor",
                     "Description of a tensor in a checkpoint. The tensor is a parameter or one\n"
                     "kind of its state.");
  type.def_ro("param", &T::param, "Name of the parameter.")
      .def_ro("kind", &T::kind,
              "\"param\" for the parameter itself, or the kind of state: \"momentum\",\n"
              "\"variance\", \"master\", \"remainder\" or \"normuon\".")
      .def_ro("dtype", &T::dtype, "Data type: \"float32\", \"bfloat16\" or \"uint16\".")
      .def_ro("shape", &T::shape, "Shape of the whole tensor.")
      .def_ro("role", &T::role, "The algorithm that updates the parameter: \"muon\" or \"adamw\".")
      .def_ro("momentum_kind", &T::momentum_kind,
              "How the momentum is defined: \"heavy_ball\", or \"ema\" for an exponential\n"
              "moving average.");
  add_field(
      type, "nbytes", "int", [](const T& t) { return t.c.bytes; },
      "Size of the whole tensor in bytes; 0 if ``has_data`` is False.");
  add_field(
      type, "n_parts", "int", [](const T& t) { return t.c.n_parts; },
      "Number of blocks into which the tensor is divided in the data files.");
  add_field(
      type, "has_data", "bool", [](const T& t) { return t.c.has_data != 0; },
      "Whether the checkpoint contains the values of the tensor. If not, it contains only a\n"
      "hash of the parameter.");
  add_field(
      type, "update_count", "int", [](const T& t) { return t.c.update_count; },
      "Number of committed steps that have updated the parameter.");
  add_field(
      type, "hash", "int", [](const T& t) { return t.c.hash; }, "Hash of the parameter's values.");
  add_field(
      type, "momentum", "float", [](const T& t) { return t.c.momentum; },
      "Momentum factor: ``momentum`` of Muon, or ``beta1`` of AdamW.");
}

}  // namespace

void bind_checkpoint_reader(nb::module_& module) {
  bind_tensor(module);
  using C = Checkpoint;
  nb::class_<C> type(module, "Checkpoint",
                     "A checkpoint, from which you can read whole tensors without an optimizer.\n\n"
                     "Only one thread at a time may use a checkpoint. If a second thread calls\n"
                     "a method in the meantime, the call raises InvalidStateError.");
  type.def(nb::init<const Path&, const std::optional<Path>&>(), nb::arg("folder"),
           nb::arg("manifest") = nb::none(),
           nb::sig("def __init__(self, folder: str | bytes | os.PathLike, "
                   "manifest: str | bytes | os.PathLike | None = None) -> None"),
           "Opens a checkpoint.\n\n"
           ":param folder: path of the folder.\n"
           ":param manifest: a file name that list_manifests() returns. None selects the newest\n"
           "    checkpoint.\n\n"
           "Raises IoError if the manifest does not exist or cannot be read, CorruptError if it\n"
           "is damaged, and NotSupportedError if the checkpoint has a different format version.")
      .def_static("list_manifests", &C::list_manifests, nb::arg("folder"),
                  nb::sig("def list_manifests(folder: str | bytes | os.PathLike) -> list[str]"),
                  "Returns the file names of the manifests in a folder, the newest first.")
      .def("tensors", &C::tensors, nb::sig("def tensors(self) -> list[CheckpointTensor]"),
           "Returns the descriptions of all tensors, parameter by parameter. The parameter\n"
           "itself is first, and its state follows.")
      .def("read", &C::read, nb::arg("param"), nb::arg("kind") = "param",
           nb::sig("def read(self, param: str, kind: str = \"param\") -> typing.Any"),
           "Reads a whole tensor into a new NumPy array and verifies its checksums.\n\n"
           ":param param: name of the parameter.\n"
           ":param kind: \"param\" for the parameter itself, or a kind of state.\n"
           ":return: a float32 array, or a uint16 array with the bits of bfloat16 values or of\n"
           "    a remainder.\n\n"
           "If the data is damaged, raises CorruptError, whose message names the file and the\n"
           "damaged bytes.")
      .def("verify", &C::verify, nb::sig("def verify(self) -> None"),
           "Verifies every byte of the checkpoint. Raises CorruptError or IoError with the\n"
           "first problem. problems() then returns all problems.")
      .def("problems", &C::problems, nb::sig("def problems(self) -> list[str]"),
           "Returns all problems that the last call of verify() has found.")
      .def("manifest", &C::manifest, nb::sig("def manifest(self) -> str"),
           "Returns the text of the manifest, which is JSON and contains the settings of all\n"
           "groups.")
      .def("close", &C::close, nb::sig("def close(self) -> None"), "Closes the checkpoint.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Checkpoint"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("close")(); }, nb::arg("args"));
  add_field(
      type, "steps", "int", [](C& c) { return c.info().step; }, "Number of committed steps.");
  add_field(
      type, "with_params", "bool", [](C& c) { return c.info().with_params != 0; },
      "Whether the checkpoint contains the parameters, and not only their hashes.");
  add_field(
      type, "format_version", "int", [](C& c) { return c.info().format_version; },
      "Version of the checkpoint format.");
  add_field(
      type, "nbytes", "int", [](C& c) { return c.info().bytes; },
      "Total size of the data files in bytes.");
  add_field(
      type, "n_files", "int", [](C& c) { return c.info().n_files; },
      "Number of data files. Each rank that had data to save has written one file.");
}

}  // namespace binding
