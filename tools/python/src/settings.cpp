#include <initializer_list>

#include "binding.hpp"

namespace binding {
namespace {

constexpr muonrt_status_t kBad = MUONRT_ERROR_INVALID_ARGUMENT;

struct Word {
  const char* word;
  int32_t value;
};
using Words = std::initializer_list<Word>;

int32_t value_of(const char* what, const Words& words, const std::string& word) {
  std::string known;
  for (const Word& w : words) {
    if (word == w.word) return w.value;
    known += cat(known.empty() ? "" : ", ", w.word);
  }
  refuse(kBad, cat(what, " is '", word, "'; use one of ", known));
}

const Words kRoles = {{"muon", MUONRT_ROLE_MUON}, {"adamw", MUONRT_ROLE_ADAMW}};
const Words kViews = {
    {"plain", MUONRT_VIEW_PLAIN}, {"stack", MUONRT_VIEW_STACK}, {"matrix", MUONRT_VIEW_MATRIX}};
const Words kMasters = {{"auto", MUONRT_MASTER_AUTO},
                        {"none", MUONRT_MASTER_NONE},
                        {"owned", MUONRT_MASTER_OWNED},
                        {"remainder", MUONRT_MASTER_REMAINDER},
                        {"stochastic", MUONRT_MASTER_STOCHASTIC}};
const Words kStates = {{"momentum", MUONRT_STATE_MOMENTUM},
                       {"variance", MUONRT_STATE_VARIANCE},
                       {"master", MUONRT_STATE_MASTER},
                       {"remainder", MUONRT_STATE_REMAINDER},
                       {"normuon", MUONRT_STATE_NORMUON}};
const Words kQkClips = {{"q", MUONRT_QK_CLIP_Q},
                        {"k", MUONRT_QK_CLIP_K},
                        {"mla_q", MUONRT_QK_CLIP_MLA_Q},
                        {"mla_kv", MUONRT_QK_CLIP_MLA_KV},
                        {"qkv", MUONRT_QK_CLIP_QKV}};
const Words kDtypes = {
    {"float32", MUONRT_DTYPE_F32}, {"bfloat16", MUONRT_DTYPE_BF16}, {"float16", MUONRT_DTYPE_F16}};
const Words kMomentum = {{"ema", MUONRT_MOMENTUM_EMA},
                         {"heavy_ball", MUONRT_MOMENTUM_HEAVY_BALL},
                         {"ema_corrected", MUONRT_MOMENTUM_EMA_CORRECTED}};
const Words kCoefficients = {{"polar_express", MUONRT_COEFFICIENTS_POLAR_EXPRESS},
                             {"keller_jordan", MUONRT_COEFFICIENTS_KELLER_JORDAN},
                             {"you", MUONRT_COEFFICIENTS_YOU_JIACHENG},
                             {"cans", MUONRT_COEFFICIENTS_CANS},
                             {"deepseek_v4", MUONRT_COEFFICIENTS_DEEPSEEK_V4},
                             {"cubic", MUONRT_COEFFICIENTS_CUBIC},
                             {"classical", MUONRT_COEFFICIENTS_CLASSICAL},
                             {"aol", MUONRT_COEFFICIENTS_AOL},
                             {"custom", MUONRT_COEFFICIENTS_CUSTOM}};
const Words kScale = {{"match_rms", MUONRT_SCALE_MATCH_RMS},
                      {"original", MUONRT_SCALE_ORIGINAL},
                      {"ratio", MUONRT_SCALE_RATIO},
                      {"max_dim", MUONRT_SCALE_MAX_DIM},
                      {"none", MUONRT_SCALE_NONE}};
const Words kForms = {
    {"auto", MUONRT_FORM_AUTO}, {"standard", MUONRT_FORM_STANDARD}, {"gram", MUONRT_FORM_GRAM}};
const Words kSafety = {{"auto", MUONRT_SAFETY_AUTO},
                       {"inner", MUONRT_SAFETY_INNER},
                       {"all", MUONRT_SAFETY_ALL},
                       {"none", MUONRT_SAFETY_NONE}};
const Words kNormalize = {{"prescaled", MUONRT_NORMALIZE_PRESCALED},
                          {"add_eps", MUONRT_NORMALIZE_ADD_EPS},
                          {"max_eps", MUONRT_NORMALIZE_MAX_EPS}};
const Words kRowScaling = {{"none", MUONRT_ROW_SCALING_NONE}, {"aol", MUONRT_ROW_SCALING_AOL}};
const Words kDecay = {{"decoupled", MUONRT_WEIGHT_DECAY_DECOUPLED},
                      {"independent", MUONRT_WEIGHT_DECAY_INDEPENDENT},
                      {"lr_squared", MUONRT_WEIGHT_DECAY_LR_SQUARED},
                      {"cautious", MUONRT_WEIGHT_DECAY_CAUTIOUS}};
const Words kAdamForm = {{"torch", MUONRT_ADAM_TORCH},
                         {"folded", MUONRT_ADAM_FOLDED},
                         {"nesterov", MUONRT_ADAM_NESTEROV}};
const Words kNormuon = {{"off", MUONRT_NORMUON_OFF},
                        {"rows", MUONRT_NORMUON_ROWS},
                        {"columns", MUONRT_NORMUON_COLUMNS},
                        {"longer", MUONRT_NORMUON_LONGER}};
const Words kCommit = {{"atomic", MUONRT_COMMIT_ATOMIC}, {"eager", MUONRT_COMMIT_EAGER}};
const Words kDevices = {{"host", MUONRT_DEVICE_HOST}, {"cuda", MUONRT_DEVICE_CUDA}};
const Words kSymmetric = {{"default", MUONRT_SYMMETRIC_DEFAULT},
                          {"vendor", MUONRT_SYMMETRIC_VENDOR},
                          {"sm80", MUONRT_SYMMETRIC_SM80},
                          {"sm90", MUONRT_SYMMETRIC_SM90}};
const Words kReplicas = {
    {"once", MUONRT_REPLICAS_ONCE}, {"each", MUONRT_REPLICAS_EACH}, {"auto", MUONRT_REPLICAS_AUTO}};
const Words kReplicaCheck = {{"first", MUONRT_REPLICA_CHECK_FIRST},
                             {"every", MUONRT_REPLICA_CHECK_EVERY},
                             {"off", MUONRT_REPLICA_CHECK_OFF}};

/// Puts kwargs into fields of a struct, by name; what no field took is refused.
class Fields {
 public:
  explicit Fields(const nb::kwargs& kwargs) : kwargs_(kwargs) {}

  template <class T>
  void number(const char* name, T& field) {
    if (nb::handle value = take(name); value.is_valid() && !nb::try_cast(value, field))
      refuse(kBad, cat(name, " is ", nb::repr(value).c_str(), ", no number of its kind"));
  }
  void flag(const char* name, int32_t& field) {
    if (nb::handle value = take(name); value.is_valid()) field = is_true(value);
  }
  void choice(const char* name, const Words& words, int32_t& field) {
    if (nb::handle value = take(name); value.is_valid()) {
      std::string word;
      if (!nb::try_cast(value, word)) word = nb::repr(value).c_str();
      field = value_of(name, words, word);
    }
  }
  template <class T>
  void list(const char* name, std::vector<T>& field) {
    if (nb::handle value = take(name); value.is_valid() && !nb::try_cast(value, field))
      refuse(kBad, cat(name, " is ", nb::repr(value).c_str(), ", no list of numbers"));
  }
  void end() const {
    for (auto [key, value] : kwargs_) {
      const auto name = nb::cast<std::string>(key);
      if ((known_ + ",").find(" " + name + ",") == std::string::npos)
        throw nb::type_error(cat("no setting '", name, "'; there are", known_).c_str());
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

void set_newton_schulz(Fields& fields, Group& group) {
  muonrt_group_t& s = group.settings;
  fields.choice("coefficients", kCoefficients, s.coefficients);
  fields.number("steps", s.steps);
  fields.number("lower_bound", s.lower_bound);
  fields.number("cushion", s.cushion);
  fields.number("safety", s.safety);
  fields.choice("safety_mode", kSafety, s.safety_mode);
  fields.choice("normalize", kNormalize, s.normalize);
  fields.number("normalize_eps", s.normalize_eps);
  fields.list("custom", group.custom);
  fields.choice("form", kForms, s.form);
  fields.list("restarts", group.restarts);
  fields.choice("iteration_dtype", kDtypes, s.iteration_dtype);
  fields.choice("row_scaling", kRowScaling, s.row_scaling);
}

}  // namespace

int32_t role_of(const std::string& word) { return value_of("role", kRoles, word); }
int32_t view_of(const std::string& word) { return value_of("view", kViews, word); }
int32_t master_of(const std::string& word) { return value_of("master_kind", kMasters, word); }
int32_t state_of(const std::string& word) { return value_of("state", kStates, word); }
int32_t dtype_of(const std::string& word) { return value_of("dtype", kDtypes, word); }
int32_t qk_clip_of(const std::string& word) { return value_of("kind", kQkClips, word); }
int32_t normuon_of(const std::string& word) {
  return word.empty() ? 0 : value_of("normuon_axis", kNormuon, word);
}
std::string state_word(muonrt_state_kind_t kind) {
  for (const Word& w : kStates)
    if (w.value == kind) return w.word;
  return "";
}

void set_group(Group& group, const nb::kwargs& kwargs) {
  Fields fields(kwargs);
  muonrt_group_t& s = group.settings;
  fields.number("lr_factor", s.lr_factor);
  fields.number("weight_decay", s.weight_decay);
  fields.choice("weight_decay_kind", kDecay, s.weight_decay_kind);
  fields.number("momentum", s.momentum);
  fields.choice("momentum_kind", kMomentum, s.momentum_kind);
  fields.choice("momentum_dtype", kDtypes, s.momentum_dtype);
  fields.flag("nesterov", s.nesterov);
  set_newton_schulz(fields, group);
  fields.choice("scale_rule", kScale, s.scale_rule);
  fields.number("scale_factor", s.scale_factor);
  fields.choice("normuon", kNormuon, s.normuon);
  fields.number("normuon_beta2", s.normuon_beta2);
  fields.number("block_period", s.block_period);
  fields.number("block_rows", s.block_rows);
  fields.number("block_cols", s.block_cols);
  fields.number("block_lr_factor", s.block_lr_factor);
  fields.number("beta1", s.beta1);
  fields.number("beta2", s.beta2);
  fields.number("eps", s.eps);
  fields.choice("adam_form", kAdamForm, s.adam_form);
  fields.number("update_every", s.update_every);
  fields.end();
  if (group.custom.size() % 3 != 0 ||
      (!group.custom.empty() && static_cast<int64_t>(group.custom.size()) != 3 * int64_t{s.steps}))
    refuse(kBad,
           cat("custom has ", group.custom.size(), " numbers; give 3 for each of steps=", s.steps));
  group.point_inside();
}

void set_options(muonrt_optimizer_options_t& options, const nb::kwargs& kwargs) {
  Fields fields(kwargs);
  fields.choice("device", kDevices, options.device);
  fields.number("device_index", options.device_index);
  fields.number("threads", options.threads);
  fields.choice("transport_dtype", kDtypes, options.transport_dtype);
  fields.choice("iteration_dtype", kDtypes, options.iteration_dtype);
  fields.choice("commit", kCommit, options.commit);
  fields.number("window", options.window);
  fields.number("chunk_bytes", options.chunk_bytes);
  fields.number("timeout_ms", options.timeout_ms);
  fields.flag("trace", options.trace);
  fields.flag("portable_gemm", options.portable_gemm);
  fields.flag("poison", options.poison);
  fields.choice("replicas", kReplicas, options.replicas);
  fields.choice("replica_check", kReplicaCheck, options.replica_check);
  fields.number("seed", options.seed);
  fields.number("clip_norm", options.clip_norm);
  fields.number("health_every", options.health_every);
  fields.number("max_peers", options.max_peers);
  fields.flag("graphs", options.graphs);
  fields.choice("symmetric", kSymmetric, options.symmetric);
  fields.number("reserved_sms", options.reserved_sms);
  fields.flag("stream_ordered", options.stream_ordered);
  fields.end();
}

void bind_settings(nb::module_& module) {
  nb::class_<Group>(module, "Group", "Settings that parameters share")
      .def(
          "__init__",
          [](Group* self, const std::string& role, const std::string& name,
             const nb::kwargs& settings) {
            Group group;
            group.name = name;
            muonrt_group_init(&group.settings, role_of(role));
            set_group(group, settings);
            (new (self) Group(group))->point_inside();
          },
          nb::arg("role") = "muon", nb::arg("name") = "", nb::arg("settings"),
          "role: \"muon\" or \"adamw\". Settings by the names of muonrt/group.h, choices as words "
          "in\n"
          "lower case: lr_factor=1.0, weight_decay=0.1, momentum=0.95, nesterov=True,\n"
          "coefficients=\"polar_express\", scale_rule=\"match_rms\", beta1=0.9, beta2=0.95, ...")
      .def_ro("name", &Group::name)
      .def_prop_ro("role", [](const Group& group) {
        return group.settings.role == MUONRT_ROLE_MUON ? "muon" : "adamw";
      });
}

}  // namespace binding
