#include "api/read_param.hpp"

#include <algorithm>

#include "api/read_values.hpp"
#include "base/checked.hpp"
#include "optimizer/methods/qk_clip.hpp"

namespace muonrt::api {

namespace {

/// Reads a list of runs. NULL means the whole range [0, size).
Runs read_runs(const muonrt_run_t* runs, int64_t count, int64_t size, const std::string& who) {
  if (!runs && count == 0) return whole(size);
  MUONRT_REQUIRE(
      runs && count >= 1, kInvalidArg, who, ": the number of runs is ", count,
      ", but must be at least 1 with a list, and 0 without one; pass the number of runs");
  Runs out;
  for (int64_t i = 0; i < count; ++i) {
    const muonrt_run_t& r = runs[i];
    MUONRT_REQUIRE(r.begin < r.end && r.begin >= (i ? runs[i - 1].end : 0), kInvalidArg, who,
                   ": run ", i, " is [", r.begin, ", ", r.end,
                   "), but runs must be ascending, disjoint and not empty; pass such runs");
    if (!out.empty() && out.back().end == r.begin) {
      out.back().end = r.end;
    } else {
      out.push_back({r.begin, r.end});
    }
  }
  return out;
}

/// Reads how the dimensions form matrices, either from `view` or from batch_dims and row_dims.
void read_view(ParamSettings& to, const muonrt_param_t& p, const std::string& who) {
  to.view = read_enum<View>(who, "view", p.view, {0, 1, 2});
  to.transposed = read_bool(who, "transposed", p.transposed);
  const bool given = p.batch_dims != 0 || p.row_dims != 0;
  if (!given && (to.view != View::kFlatten || p.ndim <= 2)) return;
  for (const auto& [field, value] :
       {std::pair{"batch_dims", p.batch_dims}, {"row_dims", p.row_dims}})
    MUONRT_REQUIRE(value >= 0 && value < MUONRT_MAX_DIMS, kInvalidArg, who, ": ", field, " is ",
                   value, ", but must be between 0 and ", MUONRT_MAX_DIMS - 1,
                   "; pass a number of dimensions");
  MUONRT_REQUIRE(!given || to.view == View::kNone, kInvalidArg, who, ": view is ", p.view,
                 ", and batch_dims is ", p.batch_dims, ", row_dims ", p.row_dims,
                 ", which replace a view; set view to MUONRT_VIEW_NONE");
  const int32_t rows = p.row_dims ? p.row_dims : 1;
  MUONRT_REQUIRE(p.batch_dims + rows < p.ndim, kInvalidArg, who, ": batch_dims is ", p.batch_dims,
                 " and row_dims ", rows, ", but shape is ", to.layout.shape(),
                 ", so no dimension is left for the columns; use smaller numbers");
  if (given) to.view = p.batch_dims ? View::kStack : View::kFlatten;
  to.layout = to.layout.viewed(p.batch_dims, rows);
  if (to.grad_layout) to.grad_layout = to.grad_layout->viewed(p.batch_dims, rows);
  if (std::ssize(to.local_shape) != p.ndim) return;  // a flat range has only one size
  std::vector<int64_t> sizes(static_cast<size_t>(to.layout.dims()), 1);
  for (int d = 0; d < to.layout.dims(); ++d) {
    int64_t& size = sizes[static_cast<size_t>(d)];
    for (int t = to.layout.first_dim(d); t < to.layout.first_dim(d + 1); ++t)
      size = checked_mul(size, to.local_shape[static_cast<size_t>(t)]);
  }
  to.local_shape = std::move(sizes);
}

void read_parts(ParamSettings& to, const muonrt_param_t& p, const std::string& who) {
  MUONRT_REQUIRE(
      p.n_parts >= 0 && (p.parts || p.n_parts == 0), kInvalidArg, who, ": n_parts is ", p.n_parts,
      ", but must not be negative, and must be 0 without a list; pass the number of parts");
  if (p.n_parts == 0) return;
  const auto& shape = to.layout.shape();
  MUONRT_REQUIRE(shape.size() >= 2, kInvalidArg, who, ": shape is ", shape,
                 ", but only a matrix has parts; leave them out");
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
  out.kind = read_enum<QkKind>(who, "kind", c.kind, {0, 1, 2, 3, 4, 5, 6, 7});
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
                 " list; pass the number of heads in the list");
  out.selects = c.select != nullptr;
  if (c.select) out.select.assign(c.select, c.select + c.n_select);
  return out;
}

/// Checks the strides of a buffer of this rank. Errors: INVALID_ARGUMENT if they are not row-major
/// and contiguous.
void check_strides(const std::string& who, const char* field, const int64_t* strides,
                   const Layout& layout, int rank) {
  if (!strides || layout.local_numel(rank) == 0) return;
  std::vector<int64_t> shape = layout.local_shape(rank);
  shape.resize(layout.shape().size(), 1);  // a flat range has only one size
  const std::vector<int64_t> given(strides, strides + shape.size());
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    MUONRT_REQUIRE(shape[d] == 1 || given[d] == expected, kInvalidArg, who, ": ", field, " is ",
                   given, " for ", shape, " on rank ", rank,
                   ", but must be row-major and contiguous, and for that dimension ", d, " needs ",
                   expected, "; pass a contiguous buffer, or NULL strides");
    expected *= shape[d];
  }
}

}  // namespace

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
    // The shape may have the form that muonrt_layout_get_local_shape() returns.
    const auto is_one = [&](int64_t size) {
      return size == 1 ||
             // All zeros means that this rank is not in the mesh.
             (size == 0 && p.local_shape[0] == 0);
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
  if (p.qk_clip) {
    out.qk_clip = read_qk_clip(p.qk_clip, who + ": qk_clip");
    resolve_qk_clip(out.qk_clip, out.name, p.ndim);
  }
  out.owner = p.owner;
  MUONRT_REQUIRE(
      p.n_owners >= 0 && (p.owners || p.n_owners == 0), kInvalidArg, who, ": n_owners is ",
      p.n_owners,
      ", but must not be negative, and must be 0 without a list; pass the number of owners");
  if (p.owners) out.owners.assign(p.owners, p.owners + p.n_owners);
  out.priority = p.priority;
  read_view(out, p, who);
  read_parts(out, p, who);
  return out;
}

}  // namespace muonrt::api
