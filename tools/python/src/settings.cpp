#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>

#include "binding.hpp"
#include "optimizer/settings/fields.hpp"

namespace binding {
namespace {

using muonrt::Word;
using Words = std::span<const Word>;

int32_t value_of(const char* what, Words words, const std::string& word) {
  std::string known;
  for (const Word& w : words) {
    if (word == w.text) return w.value;
    known += cat(known.empty() ? "" : ", ", w.text);
  }
  refuse(kInvalidArg, cat(what, " is '", word, "'; use one of ", known));
}

constexpr Word kViews[] = {
    {"none", MUONRT_VIEW_NONE}, {"stack", MUONRT_VIEW_STACK}, {"flatten", MUONRT_VIEW_FLATTEN}};
constexpr Word kMasters[] = {{"auto", MUONRT_MASTER_AUTO},
                             {"none", MUONRT_MASTER_NONE},
                             {"owned", MUONRT_MASTER_OWNED},
                             {"remainder", MUONRT_MASTER_REMAINDER},
                             {"stochastic", MUONRT_MASTER_STOCHASTIC}};
constexpr Word kStates[] = {{"momentum", MUONRT_STATE_MOMENTUM},
                            {"variance", MUONRT_STATE_VARIANCE},
                            {"master", MUONRT_STATE_MASTER},
                            {"remainder", MUONRT_STATE_REMAINDER},
                            {"normuon", MUONRT_STATE_NORMUON}};
constexpr Word kQkClips[] = {{"q", MUONRT_QK_QUERY},         {"k", MUONRT_QK_KEY},
                             {"mla_q", MUONRT_QK_MLA_QUERY}, {"mla_kv", MUONRT_QK_MLA_KEY_VALUE},
                             {"qkv", MUONRT_QK_QKV},         {"qkv_blocks", MUONRT_QK_QKV_BLOCKS}};
constexpr Word kSurvivorPolicies[] = {{"majority", MUONRT_SURVIVORS_MAJORITY},
                                      {"any", MUONRT_SURVIVORS_ANY}};
constexpr Word kDtypes[] = {
    {"float32", MUONRT_DTYPE_F32}, {"bfloat16", MUONRT_DTYPE_BF16}, {"float16", MUONRT_DTYPE_F16}};
constexpr Word kDevices[] = {{"host", MUONRT_DEVICE_HOST}, {"cuda", MUONRT_DEVICE_CUDA}};

template <class Rule>
constexpr bool is_dtype =
    std::is_same_v<Rule, muonrt::StorageDType> || std::is_same_v<Rule, muonrt::AnyDType>;

/// Sets fields of a struct from keyword arguments with the same names. Rejects keywords that are
/// not the name of a field.
class Fields {
 public:
  explicit Fields(const nb::kwargs& kwargs) : kwargs_(kwargs) {}

  /// Each of these functions sets a field if its keyword was passed, and returns whether it was.
  template <class T>
  bool value(const char* name, T& field, const char* kind) {
    nb::handle value = take(name);
    if (value.is_valid() && !nb::try_cast(value, field))
      refuse(kInvalidArg, cat(name, " is ", nb::repr(value).c_str(), "; pass a ", kind));
    return value.is_valid();
  }
  bool flag(const char* name, int32_t& field) {
    nb::handle value = take(name);
    if (!value.is_valid()) return false;
    int32_t number = -1;
    if (is_bool(value)) number = is_true(value);
    if (number < 0 && !nb::try_cast(value, number)) number = -1;
    if (number != 0 && number != 1)
      refuse(kInvalidArg, cat(name, " is ", nb::repr(value).c_str(), "; pass a bool"));
    field = number;
    return true;
  }
  /// None means that there is no function.
  bool function(const char* name, nb::object& field) {
    nb::handle value = take(name);
    if (!value.is_valid() || value.is_none()) return false;
    if (PyCallable_Check(value.ptr()) == 0)
      refuse(kInvalidArg, cat(name, " is ", nb::repr(value).c_str(), "; pass a function, or None"));
    field = nb::borrow(value);
    return true;
  }
  void choice(const char* name, Words words, int32_t& field) {
    if (nb::handle value = take(name); value.is_valid()) {
      std::string word;
      if (!nb::try_cast(value, word)) word = nb::repr(value).c_str();
      field = value_of(name, words, word);
    }
  }
  /// Returns a visitor that sets the field of each row of a table, except the role, which is a
  /// separate argument.
  template <class C>
  auto rows_of(C& to) {
    return [this, &to](const auto& row) {
      if constexpr (requires { row.rule; }) {
        using Rule = decltype(row.rule);
        auto& field = row.c_member(to);
        if (std::string_view(row.name) == "role") return;
        if constexpr (std::is_same_v<Rule, muonrt::MachineText>) {
          if (value(row.name, to.machine_text, "str")) {
            to.machine_text = machine_text(to.machine_text);
            field = to.machine_text.c_str();
          }
        } else if constexpr (std::is_same_v<Rule, muonrt::Choice>) {
          choice(row.name, row.rule.words, field);
        } else if constexpr (is_dtype<Rule>) {
          choice(row.name, kDtypes, field);
        } else if constexpr (std::is_same_v<Rule, muonrt::Flag>) {
          flag(row.name, field);
        } else {
          value(
              row.name, field,
              std::is_floating_point_v<std::decay_t<decltype(field)>> ? "number" : "whole number");
        }
      }
    };
  }
  void end() const {
    for (auto [key, value] : kwargs_) {
      const auto name = nb::cast<std::string>(key);
      if ((known_ + ",").find(" " + name + ",") == std::string::npos)
        throw nb::type_error(cat("there is no setting '", name, "'; use one of", known_).c_str());
    }
  }

 private:
  nb::handle take(const char* name) {
    known_ += cat(known_.empty() ? " " : ", ", name);
    return kwargs_.contains(name) ? nb::handle(kwargs_[name]) : nb::handle();
  }
  const nb::kwargs& kwargs_;
  std::string known_;
};

/// Returns a visitor that appends ", name: type = ..." for each row of a table.
auto signs(std::string& out) {
  return [&out](const auto& row) {
    if constexpr (requires { row.rule; }) {
      using Rule = decltype(row.rule);
      if (std::string_view(row.name) == "role") return;
      const bool whole =
          std::is_same_v<Rule, muonrt::Integers> || std::is_same_v<Rule, muonrt::Unchecked>;
      const bool word = std::is_same_v<Rule, muonrt::Choice> || is_dtype<Rule> ||
                        std::is_same_v<Rule, muonrt::MachineText>;
      const char* const type = word                                 ? "str"
                               : std::is_same_v<Rule, muonrt::Flag> ? "bool"
                               : whole                              ? "int"
                                                                    : "float";
      out += cat(", ", row.name, ": ", type, " = ...");
    }
  };
}

}  // namespace

std::string machine_text(const std::string& name_or_path) {
  if (!name_or_path.ends_with(".json")) return name_or_path;
  std::string out;
  errno = 0;
  std::FILE* const file = std::fopen(name_or_path.c_str(), "rb");
  bool read = file != nullptr;
  if (file) {
    char part[4096];
    for (size_t n = 0; (n = std::fread(part, 1, sizeof part, file)) > 0;) out.append(part, n);
    read = std::ferror(file) == 0;
    std::fclose(file);  // does not change errno, because nothing was written
  }
  if (!read)
    refuse(kInvalidArg,
           cat("machine is '", name_or_path, "', which cannot be read (",
               std::generic_category().message(errno), "); pass the path of a profile"));
  return out;
}

std::string group_signature() {
  std::string out =
      "*, custom: collections.abc.Sequence[float] = ..., gram_restarts: "
      "collections.abc.Sequence[int] = ...";
  muonrt::visit_group_fields(signs(out));
  return out + ")";
}
std::string option_signature() {
  std::string out = "*, device: str = ...";
  muonrt::visit_option_fields(signs(out));
  out +=
      ", assign: collections.abc.Callable[[AssignInfo], int | collections.abc.Sequence[int]] | "
      "None "
      "= ..., gather: collections.abc.Callable[[str, int, typing.Any, typing.Any, int | None], "
      "None] "
      "| None = ..., redistribute: collections.abc.Callable[[str, int, typing.Any, typing.Any, "
      "int | None], None] | None = ..., async_parallelism: bool = ..., prefetch_count: int = ...";
  return out + ")";
}

int32_t role_of(const std::string& word) { return value_of("role", muonrt::kRoles, word); }
int32_t view_of(const std::string& word) { return value_of("view", kViews, word); }
int32_t master_of(const std::string& word) { return value_of("master_kind", kMasters, word); }
int32_t state_of(const std::string& word) { return value_of("state", kStates, word); }
int32_t survivor_policy_of(const std::string& word) {
  return value_of("survivor_policy", kSurvivorPolicies, word);
}
int32_t dtype_of(const std::string& word) { return value_of("dtype", kDtypes, word); }
int32_t qk_clip_of(const std::string& word) { return value_of("kind", kQkClips, word); }
std::string qk_clip_word(int32_t kind) {
  for (const Word& w : kQkClips)
    if (w.value == kind) return w.text;
  return "";
}
int32_t normuon_of(const std::string& word) {
  return word.empty() ? 0 : value_of("normuon_axis", muonrt::kNormuonAxes, word);
}
std::string state_word(muonrt_state_kind_t kind) {
  for (const Word& w : kStates)
    if (w.value == kind) return w.text;
  return "";
}

void set_group(Group& group, const nb::kwargs& kwargs) {
  Fields fields(kwargs);
  muonrt_group_t& s = group.settings;
  muonrt::visit_group_fields(fields.rows_of(s));
  fields.value("custom", group.custom, "list of numbers");
  fields.value("gram_restarts", group.gram_restarts, "list of whole numbers");
  fields.end();
  if (group.custom.size() % 3 != 0 ||
      (!group.custom.empty() && static_cast<int64_t>(group.custom.size()) != 3 * int64_t{s.steps}))
    refuse(kInvalidArg, cat("custom has ", group.custom.size(), " numbers, but steps is ", s.steps,
                            "; pass 3 numbers for each step"));
  group.point_inside();
}

void set_options(Options& options, const nb::kwargs& kwargs) {
  Fields fields(kwargs);
  fields.choice("device", kDevices, options.device);
  muonrt::visit_option_fields(fields.rows_of(options));
  muonrt_distributed_config_t& caller = options.caller;
  bool& used = options.has_distributed;
  used |= fields.function("assign", options.assign);
  used |= fields.function("gather", options.gather);
  used |= fields.function("redistribute", options.redistribute);
  used |= fields.flag("async_parallelism", caller.async_parallelism);
  const bool counted = fields.value("prefetch_count", caller.prefetch_count, "whole number");
  used |= counted;
  fields.end();
  if (!used || !kwargs.contains("window")) return;
  // In the C struct, prefetch_count replaces the window.
  if (counted)
    refuse(kInvalidArg,
           cat("window is ", options.window, " and prefetch_count is ", caller.prefetch_count,
               ", but prefetch_count + 1 is the window; pass one "
               "of them"));
  caller.prefetch_count = options.window - 1;
}

void bind_settings(nb::module_& module) {
  module.def("_machine_text", &machine_text, nb::sig("def _machine_text(name_or_path: str) -> str"),
             "Returns the content of the file if the text is the path of a profile (*.json).\n"
             "Otherwise returns the text.");
  static const std::string sig =
      cat("def __init__(self, role: str = 'muon', name: str = '', ", group_signature(), " -> None");
  nb::class_<Group>(module, "Group", "Settings that several parameters share; see muonrt_group_t.")
      .def(
          "__init__",
          [](Group* self, const std::string& role, const std::string& name,
             const nb::kwargs& settings) {
            Group group;
            group.name = name;
            if (role_of(role) == MUONRT_ROLE_MUON)
              muonrt_group_init_muon(&group.settings);
            else
              muonrt_group_init_adamw(&group.settings);
            set_group(group, settings);
            (new (self) Group(group))->point_inside();
          },
          nb::arg("role") = "muon", nb::arg("name") = "", nb::arg("settings"), nb::sig(sig.c_str()),
          "Creates a group.\n\n"
          ":param role: the algorithm that updates the parameters: \"muon\" or \"adamw\".\n"
          ":param name: a name for messages and the printed plan.\n\n"
          "The keyword arguments are the fields of muonrt_group_t. Pass enum values as\n"
          "lower-case strings. Example: lr_factor=1.0, weight_decay=0.1, momentum=0.95,\n"
          "nesterov=True, coefficients=\"polar_express\", scale_rule=\"match_rms\", beta1=0.9,\n"
          "beta2=0.95, adamw_eps=1e-8, normuon_axis=\"rows\".")
      .def_ro("name", &Group::name)
      .def_prop_ro("role", [](const Group& group) {
        return group.settings.role == MUONRT_ROLE_MUON ? "muon" : "adamw";
      });
}

}  // namespace binding
