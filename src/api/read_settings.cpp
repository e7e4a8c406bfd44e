#include "api/read_settings.hpp"

#include "api/read_layout.hpp"
#include "api/read_param.hpp"
#include "api/read_values.hpp"
#include "host/host_device.hpp"
#include "optimizer/settings/fields.hpp"

namespace muonrt::api {

namespace {

/// The type of a setting, without std::optional.
template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

/// Returns the values that a field may have if it is an enum, a flag or a dtype.
template <class Rule>
std::vector<int32_t> known_values(const Rule& rule) {
  if constexpr (std::is_same_v<Rule, Choice>) {
    std::vector<int32_t> out;
    for (const Word& word : rule.words) out.push_back(word.value);
    return out;
  }
  if constexpr (std::is_same_v<Rule, Flag>) return {0, 1};
  return {MUONRT_DTYPE_F32, MUONRT_DTYPE_BF16, MUONRT_DTYPE_F16};
}

/// Returns a visitor that reads each field that `from` has.
template <class Settings, class C>
auto reads(const std::string& who, Settings& to, const C& from) {
  return [&](const auto& row) {
    if constexpr (requires { row.c_member(from); }) {
      auto& out = row.member(to);
      const auto given = row.c_member(from);
      using Value = typename ValueOf<std::remove_reference_t<decltype(out)>>::type;
      if (row.has(kZeroIsAbsent) && !given) return;
      if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>) {
        out = static_cast<Value>(read_enum<int32_t>(who, row.name, given, known_values(row.rule)));
      } else {
        out = given;
      }
    }
  };
}

void read_restarts(GroupSettings& out, const muonrt_group_t& g, const std::string& who) {
  MUONRT_REQUIRE(g.n_gram_restarts >= 0 && g.n_gram_restarts < kMaxSteps &&
                     (g.gram_restarts || !g.n_gram_restarts),
                 kInvalidArg, who, ": n_gram_restarts is ", g.n_gram_restarts,
                 ", and gram_restarts is ", g.gram_restarts ? "set" : "NULL",
                 ", but the number must be between 0 and ", kMaxSteps - 1,
                 ", and must be 0 without a list; pass the number of restarts");
  if (g.gram_restarts)
    out.gram_restarts.emplace(g.gram_restarts, g.gram_restarts + g.n_gram_restarts);
}

void read_distributed(OptimizerSettings& to, const muonrt_distributed_config_t* given, int world) {
  const std::string who = "options: distributed";
  muonrt_distributed_config_t defaults;
  muonrt_distributed_config_init(&defaults);
  const auto c = read_struct(given, defaults, who.c_str());
  to.serial = !read_bool(who, "async_parallelism", c.async_parallelism);
  MUONRT_REQUIRE(c.prefetch_count >= 0 && c.prefetch_count <= 63, kInvalidArg, who,
                 ": prefetch_count is ", c.prefetch_count,
                 ", but must be between 0 and 63; set it in this range");
  to.window = c.prefetch_count + 1;
  to.exchange_callbacks = {c.state, c.gather, c.redistribute};
  if (!c.assign) return;
  to.assign_owner = [c, world](int64_t param, const ParamSettings& p,
                               const std::vector<int32_t>& holders, int32_t* owner) {
    const auto& shape = p.layout.shape();
    std::vector<int32_t> of_matrices;
    std::vector<int64_t> begins = {0};
    for (const std::vector<int32_t>& ranks : holders_of_matrices(p, world)) {
      of_matrices.insert(of_matrices.end(), ranks.begin(), ranks.end());
      begins.push_back(std::ssize(of_matrices));
    }
    const muonrt_assign_info_t info{sizeof info,
                                    static_cast<int32_t>(shape.size()),
                                    p.name.c_str(),
                                    shape.data(),
                                    holders.data(),
                                    static_cast<int32_t>(holders.size()),
                                    world,
                                    stack_size(p),
                                    of_matrices.data(),
                                    begins.data()};
    return c.assign(c.state, param, &info, owner);
  };
}

void read_allocator(OptimizerSettings& to, const muonrt_allocator_t* given) {
  const std::string who = "options: allocator";
  muonrt_allocator_t defaults;
  muonrt_allocator_init(&defaults);
  const auto a = read_struct(given, defaults, who.c_str());
  MUONRT_REQUIRE(a.allocate && a.release, kInvalidArg, who, ": ",
                 a.allocate  ? "release is"
                 : a.release ? "allocate is"
                             : "allocate and release are",
                 " NULL, but both functions are needed; set both, or pass no allocator");
  to.allocator = {a.state, a.allocate, a.release};
}

/// The options, and the structs to which they point.
struct Options {
  muonrt_optimizer_options_t main;
  muonrt_tuning_options_t tuning;
  muonrt_debug_options_t debug;
};

Options default_options() {
  Options out;
  muonrt_optimizer_options_init(&out.main);
  muonrt_tuning_options_init(&out.tuning);
  muonrt_debug_options_init(&out.debug);
  return out;
}

Options read_structs(const muonrt_optimizer_options_t* given) {
  Options out = default_options();
  if (given) out.main = read_struct(given, out.main, "options");
  if (out.main.tuning) out.tuning = read_struct(out.main.tuning, out.tuning, "options: tuning");
  if (out.main.debug) out.debug = read_struct(out.main.debug, out.debug, "options: debug");
  return out;
}

/// If the device is the host, checks that all options that apply only to GPUs have their defaults.
void check_host(const Options& o) {
  MUONRT_REQUIRE(o.main.device_index == 0, kInvalidArg, "options: device_index is ",
                 o.main.device_index, " on the host, but only GPUs have an index; set it to 0");
  const Options defaults = default_options();
  visit_option_fields([&](const auto& row) {
    if constexpr (requires { row.c_member; }) {
      const auto given = c_field(row, o.main, o.tuning, o.debug);
      const auto wanted = c_field(row, defaults.main, defaults.tuning, defaults.debug);
      MUONRT_REQUIRE(!row.has(kGpuOnly) || given == wanted, kInvalidArg, "options: ", row.name,
                     " is ", given, " on the host, but only GPUs have this option; set it to ",
                     wanted);
    }
  });
}

}  // namespace

GroupSettings read_group(const muonrt_group_t* given, const std::string& who, bool with_lists) {
  struct_size_of(given, who.c_str(), sizeof *given);
  const int32_t role = given->role;
  muonrt_group_t defaults;
  if (role == MUONRT_ROLE_ADAMW) {
    muonrt_group_init_adamw(&defaults);
  } else {
    muonrt_group_init_muon(&defaults);
  }
  const muonrt_group_t g = read_struct(given, defaults, who.c_str());
  GroupSettings out;
  visit_group_fields(reads(who, out, g));
  if (g.name) out.name = read_name(g.name, who);
  if (out.steps == 0) out.steps = published_steps(out.coefficients);
  if (with_lists) read_restarts(out, g, who);
  const bool custom = out.coefficients == CoefficientFamily::kCustom;
  MUONRT_REQUIRE(custom || !g.custom || !with_lists, kInvalidArg, who,
                 ": custom is set, but coefficients is ", g.coefficients,
                 "; set it to MUONRT_COEFFICIENTS_CUSTOM");
  if (with_lists && custom) {
    MUONRT_REQUIRE(g.custom && g.steps >= 1 && g.steps <= kMaxSteps, kInvalidArg, who,
                   ": custom coefficients need `custom` and 1 to ", kMaxSteps,
                   " steps, but steps is ", g.steps, " and `custom` is ", g.custom ? "set" : "NULL",
                   "; pass steps x 3 numbers");
    for (int i = 0; i < g.steps; ++i) {
      out.custom.push_back({g.custom[3 * i], g.custom[3 * i + 1], g.custom[3 * i + 2]});
    }
  }
  return out;
}

OptimizerSettings read_options(const muonrt_optimizer_options_t* options, int world) {
  const Options o = read_structs(options);
  const std::string who = "options";
  auto out =
      OptimizerSettings::defaults(read_enum<DeviceKind>(who, "device", o.main.device, {0, 1}));
  visit_option_fields(reads(who, out, o.main));
  visit_option_fields(reads(who, out, o.tuning));
  visit_option_fields(reads(who, out, o.debug));
  if (out.device == DeviceKind::kHost) check_host(o);
  if (o.tuning.iteration_dtype) {
    out.gram_iteration_dtype.reset();
  } else if (out.device == DeviceKind::kHost && !out.portable_gemm && host::multiplies_bf16()) {
    // In bf16, the Gram form is less accurate than the standard form.
    out.iteration_dtype = DType::kBF16;
    out.gram_iteration_dtype = DType::kF32;
  }
  if (o.tuning.distributed) read_distributed(out, o.tuning.distributed, world);
  if (o.tuning.allocator) read_allocator(out, o.tuning.allocator);
  return out;
}

OptimizerSettings read_settings(const muonrt_optimizer_options_t* options,
                                const muonrt_group_t* groups, int32_t n_groups,
                                const muonrt_param_t* params, int64_t n_params, int rank,
                                int world) {
  OptimizerSettings out = read_options(options, world);
  MUONRT_REQUIRE(n_groups >= 1 && groups, kInvalidArg, "n_groups is ", n_groups, " with groups ",
                 groups ? "set" : "NULL", ", but every parameter needs a group; pass at least one");
  MUONRT_REQUIRE(n_params >= 1 && n_params < INT32_MAX && params, kInvalidArg, "n_params is ",
                 n_params, " with params ", params ? "set" : "NULL",
                 ", but an optimizer needs parameters; pass at least one");
  const uint32_t group_stride = struct_size_of(groups, "group 0", sizeof *groups);
  for (int32_t i = 0; i < n_groups; ++i) {
    const std::string group = cat("group ", i);
    out.groups.push_back(read_group(element(groups, i, group_stride, group), group));
  }
  LayoutReader layouts(world);
  const uint32_t param_stride = struct_size_of(params, "param 0", sizeof *params);
  for (int64_t i = 0; i < n_params; ++i) {
    out.params.push_back(
        read_param(element(params, i, param_stride, cat("param ", i)), i, layouts, rank));
  }
  out.params.shrink_to_fit();  // the optimizer keeps `params`, so unused memory is freed
  return out;
}

StepArgs read_step(const muonrt_step_args_t* given, int64_t n_params, int32_t n_groups) {
  MUONRT_REQUIRE(given, kInvalidArg, "step: args is NULL; fill one with muonrt_step_args_init()");
  muonrt_step_args_t defaults;
  muonrt_step_args_init(&defaults);
  const auto s = read_struct(given, defaults, "step");
  MUONRT_REQUIRE(s.n_inactive_params >= 0 && s.n_inactive_params <= n_params &&
                     (s.inactive_params || s.n_inactive_params == 0),
                 kInvalidArg, "step: n_inactive_params is ", s.n_inactive_params,
                 ", but must be between 0 and ", n_params,
                 ", and must be 0 without a list; pass the number of indices");
  MUONRT_REQUIRE(s.n_group_lrs == (s.group_lrs ? n_groups : 0), kInvalidArg,
                 "step: n_group_lrs is ", s.n_group_lrs, " with group_lrs ",
                 s.group_lrs ? "set" : "NULL", ", but there are ", n_groups,
                 " groups; pass one rate for each, or 0 and NULL");
  StepArgs out;
  out.lr = s.lr;
  if (s.group_lrs) out.group_lrs.assign(s.group_lrs, s.group_lrs + n_groups);
  out.grad_scale_inv = s.grad_scale_inv;
  out.device_grad_scale_inv = s.device_grad_scale_inv;
  out.grad_multiplier = s.grad_multiplier;
  out.found_inf = s.found_inf;
  out.qk_logits = s.qk_logits;
  out.n_qk_logits = s.n_qk_logits;
  out.stream = s.stream;
  if (s.n_inactive_params)
    out.inactive_params.assign(s.inactive_params, s.inactive_params + s.n_inactive_params);
  return out;
}

}  // namespace muonrt::api
