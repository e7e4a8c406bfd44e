#include "binding.hpp"

namespace binding {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += cat(i > 0 ? ", " : "", shape[i]);
  return out + (shape.size() == 1 ? ",)" : ")");
}

void set_python_error(const muonrt::Error& error) {
  // Remove the status from the text, because the exception class already shows it.
  std::string text = error.what();
  const std::string name = cat(muonrt_status_get_name(error.status()), ": ");
  if (text.compare(0, name.size(), name) == 0) text.erase(0, name.size());
  nb::object make = nb::module_::import_("muonrt._errors").attr("of_status");
  // The library may have truncated the text in the middle of a UTF-8 character.
  const nb::object decoded = nb::bytes(text.data(), text.size()).attr("decode")("utf-8", "replace");
  const nb::object raised = make(error.status(), decoded);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

namespace {

/// Raises the exception of muonrt._errors for the status.
void raise(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const muonrt::Error& error) {
    or_sleep([&] { set_python_error(error); });
  }
}

std::tuple<std::string, std::string, std::string> route(
    const std::string& name, int32_t ndim, const std::vector<std::string>& expert_keys,
    const std::vector<std::string>& adamw_keys) {
  enum muonrt_role role {};
  enum muonrt_view view {};
  muonrt_routing_t routing;
  muonrt_routing_init(&routing);
  std::vector<const char*> experts, adamw;
  for (const std::string& key : expert_keys) experts.push_back(key.c_str());
  for (const std::string& key : adamw_keys) adamw.push_back(key.c_str());
  routing.expert_keys = experts.data();
  routing.n_expert_keys = static_cast<int32_t>(experts.size());
  routing.adamw_keys = adamw.data();
  routing.n_adamw_keys = static_cast<int32_t>(adamw.size());
  check(muonrt_routing_resolve(&role, &view, &routing, name.c_str(), ndim));
  char reason[512] = "";
  check(muonrt_routing_explain(reason, sizeof reason, nullptr, &routing, name.c_str(), ndim));
  const char* const views[] = {"none", "stack", "flatten"};
  return {role == MUONRT_ROLE_MUON ? "muon" : "adamw", views[view], reason};
}

}  // namespace
}  // namespace binding

NB_MODULE(_core, module) {
  using namespace binding;
  module.doc() = "Python bindings of muonrt's C interface. Import the package muonrt instead.";
  // Python does not free all objects when it exits, because daemon threads and autograd hooks may
  // still refer to them.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(raise);
  module.def(
      "version", [] { return muonrt_get_version(); }, nb::sig("def version() -> int"),
      "Returns the version of the library as major * 10000 + minor * 100 + patch.");
  module.def(
      "build_info", [] { return muonrt::build_info(); }, nb::sig("def build_info() -> str"),
      "Returns a description of the library's build, as JSON.");
  module.def(
      "status_name", [](int32_t status) { return std::string(muonrt_status_get_name(status)); },
      nb::arg("status"), nb::sig("def status_name(status: int) -> str"),
      "Returns the name of a status, such as \"MUONRT_OK\".");
  module.def(
      "route",
      [](const std::string& name, int32_t ndim, const std::vector<std::string>& expert_keys,
         const std::vector<std::string>& adamw_keys) {
        const auto [role, view, reason] = route(name, ndim, expert_keys, adamw_keys);
        return std::tuple(role, view);
      },
      nb::arg("name"), nb::arg("ndim"), nb::arg("expert_keys") = std::vector<std::string>{},
      nb::arg("adamw_keys") = std::vector<std::string>{},
      nb::sig("def route(name: str, ndim: int, "
              "expert_keys: collections.abc.Sequence[str] = [], "
              "adamw_keys: collections.abc.Sequence[str] = []) -> tuple[str, str]"),
      "Chooses the role (\"muon\" or \"adamw\") and the view (\"none\", \"stack\" or\n"
      "\"flatten\") of a parameter by its name and its number of dimensions; see\n"
      "muonrt_routing_resolve().\n\n"
      ":param expert_keys: additional words that identify stacks of matrices. A parameter with\n"
      "    three dimensions is a stack if its name contains one of them.\n"
      ":param adamw_keys: words that identify parameters for AdamW.");
  module.def(
      "_route_and_reason",
      [](const std::string& name, int32_t ndim) { return route(name, ndim, {}, {}); },
      nb::sig("def _route_and_reason(name: str, ndim: int) -> tuple[str, str, str]"),
      "Returns the results of route() and the reason, as muonrt_routing_explain() does.");
  module.def(
      "parse_qk_layer",
      [](const std::string& name) -> std::pair<std::optional<std::string>, int64_t> {
        enum muonrt_qk_kind kind {};
        int64_t layer = -1;
        check(muonrt_qk_layer_parse(&kind, &layer, name.c_str()));
        if (kind == MUONRT_QK_NONE) return {std::nullopt, layer};
        return {qk_clip_word(kind), layer};
      },
      nb::arg("name"), nb::sig("def parse_qk_layer(name: str) -> tuple[str | None, int]"),
      "Returns the kind of an attention projection and the number of its layer, both of which\n"
      "follow from the name of the parameter. The kind is \"q\", \"k\", \"mla_q\", \"mla_kv\",\n"
      "\"qkv\" or \"qkv_blocks\", as in QkClip. Returns (None, -1) for other names. See\n"
      "muonrt_qk_layer_parse().");
  module.def("_close_all", &close_everything);
  bind_log(module);
  bind_comm(module);
  bind_layout(module);
  bind_settings(module);
  bind_parts(module);
  bind_param(module);
  bind_distributed(module);
  bind_optimizer(module);
  bind_orthogonalize(module);
  bind_checkpoint_reader(module);
}
