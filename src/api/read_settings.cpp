#include "api/read_settings.hpp"

#include <algorithm>

#include "api/read_layout.hpp"
#include "api/structs.hpp"
#include "base/checked.hpp"
#include "optimizer/settings/fields.hpp"

namespace muonrt::api {

namespace {

template <class E>
E read_enum(const std::string& who, const char* field, int32_t value,
            const std::vector<int32_t>& known) {
  for (const int32_t k : known) {
    if (value == k) return static_cast<E>(value);
  }
  throw Error(kInvalidArg, cat(who, ": ", field, " is ", value, " (known values are ", known,
                               "); use one of them"));
}

DType read_dtype(const std::string& who, const char* field, int32_t value) {
  return read_enum<DType>(who, field, value,
                          {MUONRT_DTYPE_F32, MUONRT_DTYPE_BF16, MUONRT_DTYPE_F16});
}

bool read_bool(const std::string& who, const char* field, int32_t value) {
  return read_enum<int32_t>(who, field, value, {0, 1}) != 0;
}

/// What a field holds; of an optional one, what it may hold.
template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

/// The values that the type of a field has, where it is no number.
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

/// Reads each row of a C struct.
template <class Settings, class C>
auto reads(const std::string& who, Settings& to, const C& from) {
  return [&](const auto& row) {
    if constexpr (requires { row.member; }) {
      auto& out = row.member(to);
      const auto given = row.c_member(from);
      using Value = typename ValueOf<std::remove_reference_t<decltype(out)>>::type;
      if (row.has(kZeroIsAbsent) && given == 0) return;
      if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>) {
        out = static_cast<Value>(read_enum<int32_t>(who, row.name, given, known_values(row.rule)));
      } else {
        out = given;
      }
    }
  };
}

// A growable struct inside an array: element `i`, one struct_size apart from the next.
template <class T>
const T* element(const T* array, int64_t i, uint32_t stride, const std::string& who) {
  const auto* at = reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) +
                                              i * static_cast<int64_t>(stride));
  uint32_t size = 0;
  std::memcpy(&size, at, sizeof size);
  MUONRT_REQUIRE(size == stride, kInvalidArg, who, ": struct_size is ", size, " (element 0 has ",
                 stride, "; all must be equal); fill every element with its _init function first");
  return at;
}

std::string read_name(const char* name, const std::string& who) {
  MUONRT_REQUIRE(name && *name, kInvalidArg, who, ": name is ", name ? "empty" : "null",
                 " (messages and the plan need one); name it");
  for (const char* c = name; *c; ++c) {
    MUONRT_REQUIRE(!is_control(*c), kInvalidArg, who, ": name holds a control character (value ",
                   static_cast<int>(*c), "); remove it");
  }
  return name;
}

// Null means the whole of `size`.
Runs read_runs(const muonrt_run_t* runs, int64_t count, int64_t size, const std::string& who) {
  if (!runs && count == 0) return whole(size);
  MUONRT_REQUIRE(runs && count >= 1, kInvalidArg, who, ": ", count, " runs with ",
                 runs ? "a" : "no", " list (>= 1 with one, or neither); correct it");
  Runs out;
  for (int64_t i = 0; i < count; ++i) {
    const muonrt_run_t& r = runs[i];
    MUONRT_REQUIRE(r.begin < r.end && r.begin >= (i ? runs[i - 1].end : 0), kInvalidArg, who,
                   ": run ", i, " is [", r.begin, ", ", r.end,
                   ") (runs are not empty, ascending and disjoint); correct it");
    if (!out.empty() && out.back().end == r.begin) {
      out.back().end = r.end;
    } else {
      out.push_back({r.begin, r.end});
    }
  }
  return out;
}

/// How the dimensions are read: `view`, or batch_dims and row_dims in its place.
void read_view(ParamSettings& to, const muonrt_param_t& p, const std::string& who) {
  to.view = read_enum<View>(who, "view", p.view, {0, 1, 2});
  to.transposed = read_bool(who, "transposed", p.transposed);
  const bool given = p.batch_dims != 0 || p.row_dims != 0;
  if (!given && (to.view != View::kMatrix || p.ndim <= 2)) return;
  for (const auto& [field, value] :
       {std::pair{"batch_dims", p.batch_dims}, {"row_dims", p.row_dims}})
    MUONRT_REQUIRE(value >= 0 && value < MUONRT_MAX_DIMS, kInvalidArg, who, ": ", field, " is ",
                   value, " (must lie in [0, ", MUONRT_MAX_DIMS - 1, "]); correct it");
  MUONRT_REQUIRE(!given || to.view == View::kNone, kInvalidArg, who, ": view is ", p.view,
                 ", and batch_dims is ", p.batch_dims, ", row_dims ", p.row_dims,
                 " (they say what a view says); leave view at MUONRT_VIEW_NONE");
  const int32_t rows = p.row_dims ? p.row_dims : 1;
  MUONRT_REQUIRE(p.batch_dims + rows < p.ndim, kInvalidArg, who, ": batch_dims is ", p.batch_dims,
                 " and row_dims ", rows, ", but shape is ", to.layout.shape(),
                 " (the columns need a dimension after those); correct them");
  if (given) to.view = p.batch_dims ? View::kStack : View::kMatrix;
  to.layout = to.layout.viewed(p.batch_dims, rows);
  if (to.grad_layout) to.grad_layout = to.grad_layout->viewed(p.batch_dims, rows);
  if (std::ssize(to.local_shape) != p.ndim) return;  // flat: a number of elements
  std::vector<int64_t> sizes(static_cast<size_t>(to.layout.dims()), 1);
  for (int d = 0; d < to.layout.dims(); ++d) {
    int64_t& size = sizes[static_cast<size_t>(d)];
    for (int t = to.layout.first_dim(d); t < to.layout.first_dim(d + 1); ++t)
      size = checked_mul(size, to.local_shape[static_cast<size_t>(t)]);
  }
  to.local_shape = std::move(sizes);
}

void read_parts(ParamSettings& to, const muonrt_param_t& p, const std::string& who) {
  MUONRT_REQUIRE(p.n_parts >= 0 && (p.parts || p.n_parts == 0), kInvalidArg, who, ": n_parts is ",
                 p.n_parts, " with a null list or below 0; pass parts or 0");
  if (p.n_parts == 0) return;
  const auto& shape = to.layout.shape();
  MUONRT_REQUIRE(shape.size() >= 2, kInvalidArg, who, ": shape is ", shape,
                 " (only a matrix has parts); leave them out");
  const auto [rows, cols] = outputs_and_inputs(to);
  muonrt_part_t defaults;
  muonrt_part_init(&defaults);
  const uint32_t stride = struct_size_of(p.parts, cat(who, ": part 0").c_str(), sizeof *p.parts);
  for (int64_t i = 0; i < p.n_parts; ++i) {
    const std::string where = cat(who, ": part ", i);
    const auto part = read_struct(element(p.parts, i, stride, where), defaults, where.c_str());
    PartSettings out;
    out.name = part.name ? read_name(part.name, where) : cat(i);
    out.rows = read_runs(part.rows, part.n_rows, rows, where + ": rows");
    out.cols = read_runs(part.cols, part.n_cols, cols, where + ": cols");
    out.scale_factor = part.scale_factor;
    out.lr_factor = part.lr_factor;
    out.normuon_axis =
        read_enum<NormuonAxis>(where, "normuon_axis", part.normuon_axis, {0, 1, 2, 3});
    to.parts.push_back(std::move(out));
  }
}

QkClipSettings read_qk_clip(const muonrt_qk_clip_t* given, const std::string& who) {
  muonrt_qk_clip_t defaults;
  muonrt_qk_clip_init(&defaults);
  const muonrt_qk_clip_t c = read_struct(given, defaults, who.c_str());
  QkClipSettings out;
  out.kind = read_enum<QkKind>(who, "kind", c.kind, {0, 1, 2, 3, 4, 5});
  out.layer = c.layer;
  out.heads = c.heads;
  out.kv_heads = c.kv_heads ? c.kv_heads : c.heads;
  out.head_dim = c.head_dim;
  out.nope = c.nope;
  out.rope = c.rope;
  out.v_dim = c.v_dim;
  out.threshold = c.threshold;
  out.exponent = c.exponent;
  MUONRT_REQUIRE(c.n_select >= 0 && (c.select || c.n_select == 0), kInvalidArg, who,
                 ": n_select is ", c.n_select, " with ", c.select ? "a" : "no",
                 " list; correct it");
  out.selects = c.select != nullptr;
  if (c.select) out.select.assign(c.select, c.select + c.n_select);
  return out;
}

/// What the caller believes of a buffer of this rank's. Errors: INVALID_ARGUMENT unless that is
/// row-major and contiguous.
void check_strides(const std::string& who, const char* field, const int64_t* strides,
                   const Layout& layout, int rank) {
  if (!strides || layout.local_numel(rank) == 0) return;
  std::vector<int64_t> shape = layout.local_shape(rank);
  shape.resize(layout.shape().size(), 1);  // flat ranges: one number
  const std::vector<int64_t> given(strides, strides + shape.size());
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    MUONRT_REQUIRE(shape[d] == 1 || given[d] == expected, kInvalidArg, who, ": ", field, " is ",
                   given, " for ", shape, " on rank ", rank,
                   " (not row-major and contiguous: dimension ", d, " needs ", expected,
                   "); pass a contiguous buffer, or null strides");
    expected *= shape[d];
  }
}

ParamSettings read_param(const muonrt_param_t* given, int64_t index, LayoutReader& layouts,
                         int rank) {
  muonrt_param_t defaults;
  muonrt_param_init(&defaults);
  const muonrt_param_t p = read_struct(given, defaults, cat("param ", index).c_str());
  ParamSettings out;
  out.name = read_name(p.name, cat("param ", index));
  const std::string who = cat("param '", out.name, "'");
  out.group = p.group;
  out.dtype = read_dtype(who, "dtype", p.dtype);
  out.grad_dtype = p.grad_dtype ? read_dtype(who, "grad_dtype", p.grad_dtype) : out.dtype;
  out.layout = layouts.read(p.layout, p.ndim, p.shape, who);
  if (p.grad_layout)
    take_grad_layout(out, layouts.read(p.grad_layout, p.ndim, p.shape, who + ": grad_layout"));
  if (p.local_shape) {
    out.local_shape_given = true;
    out.local_shape.assign(p.local_shape, p.local_shape + p.ndim);
    // As muonrt_layout_get_local_shape gives it.
    const auto is_one = [&](int64_t size) {
      return size == 1 || (size == 0 && p.local_shape[0] == 0);  // all zeros: outside the mesh
    };
    if (!out.layout.product_form() && p.ndim > 0 &&
        std::all_of(out.local_shape.begin() + 1, out.local_shape.end(), is_one))
      out.local_shape.resize(1);
  }
  out.data = p.data;
  out.grad = p.grad;
  check_strides(who, "strides", p.strides, out.layout, rank);
  check_strides(who, "grad_strides", p.grad_strides, grad_layout(out), rank);
  out.master_kind = read_enum<MasterKind>(who, "master_kind", p.master_kind, {0, 1, 2, 3, 4, 5});
  out.master = p.master;
  out.lr_factor = p.lr_factor;
  out.normuon_axis = read_enum<NormuonAxis>(who, "normuon_axis", p.normuon_axis, {0, 1, 2, 3});
  if (p.qk_clip) out.qk_clip = read_qk_clip(p.qk_clip, who + ": qk_clip");
  out.owner = p.owner;
  out.priority = p.priority;
  read_view(out, p, who);
  read_parts(out, p, who);
  return out;
}

void read_restarts(GroupSettings& out, const muonrt_group_t& g, const std::string& who) {
  MUONRT_REQUIRE(g.n_gram_restarts >= 0 && g.n_gram_restarts < kMaxSteps &&
                     (g.gram_restarts || !g.n_gram_restarts),
                 kInvalidArg, who, ": n_restarts is ", g.n_gram_restarts, " with restarts ",
                 g.gram_restarts ? "given" : "null", " (0 to ", kMaxSteps - 1,
                 " with a list, or neither); correct it");
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
                 ": prefetch_count is ", c.prefetch_count, " (0 to 63); correct it");
  to.window = c.prefetch_count + 1;
  to.exchange_callbacks = {c.state, c.gather, c.redistribute};
  if (!c.assign) return;
  to.assign_owner = [c, world](int64_t param, const ParamSettings& p,
                               const std::vector<int32_t>& holders, int32_t* owner) {
    const auto& shape = p.layout.shape();
    const muonrt_assign_info_t facts{
        sizeof facts,   static_cast<int32_t>(shape.size()),   p.name.c_str(), shape.data(),
        holders.data(), static_cast<int32_t>(holders.size()), world};
    return c.assign(c.state, param, &facts, owner);
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
                 " NULL (one takes back what the other gave); give both, or no allocator");
  to.allocator = {a.state, a.allocate, a.release};
}

/// What only a GPU has keeps its default on the host.
void check_host(const muonrt_optimizer_options_t& o, const muonrt_optimizer_options_t& defaults) {
  MUONRT_REQUIRE(o.device_index == 0, kInvalidArg, "options: device_index is ", o.device_index,
                 " on the host (only GPUs have numbers); leave it 0");
  visit_option_fields([&](const auto& row) {
    if constexpr (requires { row.c_member; }) {
      MUONRT_REQUIRE(!row.has(kGpuOnly) || row.c_member(o) == row.c_member(defaults), kInvalidArg,
                     "options: ", row.name, " is ", row.c_member(o),
                     " on the host (it tells how a GPU works); leave it ", row.c_member(defaults));
    }
  });
}

}  // namespace

GroupSettings read_group(const muonrt_group_t* given, const std::string& who, bool with_lists) {
  struct_size_of(given, who.c_str(), sizeof *given);
  const int32_t role = given->role;
  muonrt_group_t defaults;
  muonrt_group_init(&defaults, role);
  const muonrt_group_t g = read_struct(given, defaults, who.c_str());
  GroupSettings out;
  visit_group_fields(reads(who, out, g));
  if (g.name) out.name = read_name(g.name, who);
  if (out.steps == 0) out.steps = published_steps(out.coefficients);
  if (with_lists) read_restarts(out, g, who);
  const bool custom = out.coefficients == CoefficientFamily::kCustom;
  MUONRT_REQUIRE(custom || !g.custom || !with_lists, kInvalidArg, who,
                 ": custom is given, but coefficients is ", g.coefficients,
                 "; set it to MUONRT_COEFFICIENTS_CUSTOM");
  if (with_lists && custom) {
    MUONRT_REQUIRE(g.custom && g.steps >= 1 && g.steps <= kMaxSteps, kInvalidArg, who,
                   ": custom coefficients need `custom` and 1 to ", kMaxSteps, " steps (steps is ",
                   g.steps, "); pass steps x 3 numbers");
    for (int i = 0; i < g.steps; ++i) {
      out.custom.push_back({g.custom[3 * i], g.custom[3 * i + 1], g.custom[3 * i + 2]});
    }
  }
  return out;
}

OptimizerSettings read_settings(const muonrt_optimizer_options_t* options,
                                const muonrt_group_t* groups, int32_t n_groups,
                                const muonrt_param_t* params, int64_t n_params, int rank,
                                int world) {
  muonrt_optimizer_options_t defaults;
  muonrt_optimizer_options_init(&defaults);
  const auto o = options ? read_struct(options, defaults, "options") : defaults;
  const std::string who = "options";
  auto out = OptimizerSettings::defaults(read_enum<DeviceKind>(who, "device", o.device, {0, 1}));
  visit_option_fields(reads(who, out, o));
  if (out.device == DeviceKind::kHost) check_host(o, defaults);
  if (o.iteration_dtype) out.gram_iteration_dtype.reset();
  if (o.distributed) read_distributed(out, o.distributed, world);
  if (o.allocator) read_allocator(out, o.allocator);

  MUONRT_REQUIRE(n_groups >= 1 && groups, kInvalidArg, "n_groups is ", n_groups, " with groups ",
                 groups ? "given" : "null", " (a parameter needs a group); pass at least one");
  MUONRT_REQUIRE(n_params >= 1 && n_params < INT32_MAX && params, kInvalidArg, "n_params is ",
                 n_params, " with params ", params ? "given" : "null",
                 " (an optimizer needs parameters); pass at least one");
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
  return out;
}

StepArgs read_step(const muonrt_step_args_t* given, int64_t n_params, int32_t n_groups) {
  MUONRT_REQUIRE(given, kInvalidArg,
                 "muonrt_optimizer_step: step is null; fill one with muonrt_step_args_init");
  muonrt_step_args_t defaults;
  muonrt_step_args_init(&defaults);
  const auto s = read_struct(given, defaults, "step");
  MUONRT_REQUIRE(s.n_inactive_params >= 0 && s.n_inactive_params <= n_params &&
                     (s.inactive_params || s.n_inactive_params == 0),
                 kInvalidArg, "step: n_inactive_params is ", s.n_inactive_params, " (0 to ",
                 n_params, ", with a list that is not null); correct it");
  MUONRT_REQUIRE(s.n_group_lrs == (s.group_lrs ? n_groups : 0), kInvalidArg,
                 "step: n_group_lrs is ", s.n_group_lrs, " with ", s.group_lrs ? "a" : "no",
                 " list (there are ", n_groups, " groups); pass one rate for each, or neither");
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
