#include <algorithm>
#include <cmath>
#include <set>

#include "optimizer/methods/intervals.hpp"
#include "optimizer/methods/qk_clip.hpp"
#include "optimizer/settings/fields.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

namespace {

void number(const std::string& who, const char* field, double value, double low, double high,
            bool high_open) {
  const bool inside = value >= low && (high_open ? value < high : value <= high);  // false for NaN
  MUONRT_REQUIRE(inside, kInvalidArg, who, ": ", field, " is ", value, ", but must be in [", low,
                 ", ", high, high_open ? ")" : "]", "; set it to a number in that range");
}

void integer(const std::string& who, const char* field, int64_t value, int64_t low, int64_t high) {
  MUONRT_REQUIRE(value >= low && value <= high, kInvalidArg, who, ": ", field, " is ", value,
                 ", but must be between ", low, " and ", high,
                 "; set it to a number in that range");
}

void check_dtype(const std::string& who, const char* field, DType dtype, const char* remedy) {
  MUONRT_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16, kInvalidArg, who, ": ", field,
                 " is ", name_of(dtype), ", with the value ", static_cast<int32_t>(dtype),
                 ", but only f32 and bf16 are supported; ", remedy);
}

void check_field(const std::string& who, const char* field, double value, const Number& rule) {
  if (rule.or_zero && value == 0) return;
  number(who, field, value, rule.low, rule.high, rule.open);
}

void check_field(const std::string& who, const char* field, double value, const Decay&) {
  number(who, field, value, 0, 1, true);
  MUONRT_REQUIRE(
      static_cast<float>(value) < 1.0f, kInvalidArg, who, ": ", field, " is ", value,
      ", which f32 rounds to 1, so new values would have no effect; use a smaller value");
}

void check_field(const std::string& who, const char* field, double value,
                 const NumberOrNone& rule) {
  constexpr double kLeast = NumberOrNone::kLeast;
  number(who, field, value, 0, 1e30, false);
  MUONRT_REQUIRE(value == 0 || value >= kLeast, kInvalidArg, who, ": ", field, " is ", value,
                 ", so ", rule.why, "; use 0 for ", rule.none, ", or a number from ", kLeast);
}

void check_field(const std::string& who, const char* field, int64_t value, const Integers& rule) {
  integer(who, field, value, rule.low, rule.high);
}

void check_field(const std::string& who, const char* field, DType value, const StorageDType&) {
  check_dtype(who, field, value, "use one of them");
}

// These values are checked when they are read.
void check_field(const std::string&, const char*, int64_t, const Unchecked&) {}
template <class T>
void check_field(const std::string&, const char*, const T&, const Choice&) {}
template <class T>
void check_field(const std::string&, const char*, const T&, const AnyDType&) {}
void check_field(const std::string&, const char*, bool, const Flag&) {}
// machine_of() checks this text, because the valid values depend on the device.
void check_field(const std::string&, const char*, const std::string&, const MachineText&) {}

/// Returns a visitor that checks the value of each setting.
template <class Settings>
auto checks_of(const std::string& who, const Settings& s) {
  return [&](const auto& row) {
    if constexpr (requires { row.rule; }) check_field(who, row.name, row.member(s), row.rule);
  };
}

void add_interval(std::vector<Interval>& list, const void* data, int64_t numel, DType dtype,
                  const char* what, const ParamSettings& p) {
  if (!data || numel == 0) return;
  MUONRT_REQUIRE(numel <= kMaxBytes / size_of(dtype), kInvalidArg, "param '", p.name, "': ", what,
                 " has ", numel, " elements of ", size_of(dtype),
                 " bytes, which is too large to address; split it");
  list.push_back(interval_of(data, numel, dtype, what, p.name));
}

void check_overlaps(std::vector<Interval>& list) {
  std::sort(list.begin(), list.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < list.size(); ++i) require_apart(list[i], list[i - 1]);
}

void check_layouts(const ParamSettings& p, const std::string& who, int rank, int world) {
  MUONRT_REQUIRE(!p.grad_layout || p.grad_layout->shape() == p.layout.shape(), kInvalidArg, who,
                 ": the gradient's layout has shape ", grad_layout(p).shape(),
                 ", but the parameter has ", p.layout.shape(), "; give both the same shape");
  for (const Layout* layout : {&p.layout, &grad_layout(p)}) {
    const int32_t r = layout->mesh().largest_rank();
    MUONRT_REQUIRE(r < world, kInvalidArg, who, ": its mesh contains rank ", r,
                   ", but the communicator has ", world, " ranks; use ranks below that");
  }
  const auto local = p.layout.local_shape(rank);
  MUONRT_REQUIRE(!p.local_shape_given || p.local_shape == local, kInvalidArg, who,
                 ": local_shape is ", p.local_shape, ", but with layout ", p.layout.describe(),
                 " of shape ", p.layout.shape(), ", rank ", rank, " has ", local,
                 "; register the shard of that shape, or change the layout");
}

/// Rejects settings that cannot be combined with partial gradients, or with gradients whose layout
/// differs from that of the parameter.
void check_gradients(const OptimizerSettings& s, const ParamSettings& p, const std::string& who) {
  const bool partial = !grad_layout(p).partial_dims().empty();
  const bool slices = s.groups[p.group].role == Role::kAdamW && (partial || p.grad_layout);
  MUONRT_REQUIRE(!slices || p.master_kind != MasterKind::kStochastic, Status::kNotSupported, who,
                 ": master_kind is MUONRT_MASTER_STOCHASTIC, but its gradients are partial or have "
                 "another layout than the parameter (",
                 grad_layout(p).describe(),
                 "), so its owners send rounded values; use master weights or a remainder");
  MUONRT_REQUIRE(
      !partial || s.clip_norm == 0, Status::kNotSupported, who, ": its layout holds partial sums (",
      grad_layout(p).describe(), "), but clip_norm is ", s.clip_norm,
      ", and the norm of a sum cannot be computed from partial gradients; clip the gradients "
      "yourself and pass grad_multiplier, or reduce them first");
}

void check_matrix(const ParamSettings& p, const std::string& who) {
  MUONRT_REQUIRE(p.layout.numel() < kMaxBytes, kInvalidArg, who, ": shape is ", p.layout.shape(),
                 ", which is too large to address; split it");
  const bool stack = p.view == View::kStack;
  MUONRT_REQUIRE(p.layout.dims() == (stack ? 3 : 2), kInvalidArg, who, ": shape is ",
                 p.layout.shape(),
                 stack ? ", but a stack is experts x rows x cols" : ", but Muon works on matrices",
                 "; set view, or batch_dims and row_dims, or put it into an AdamW group");
  MUONRT_REQUIRE(p.layout.numel() > 0, kInvalidArg, who, ": shape is ", p.layout.shape(),
                 ", but an empty matrix has no polar factor; leave it out");
}

void check_parts(const GroupSettings& g, const ParamSettings& p, const std::string& who) {
  MUONRT_REQUIRE(p.parts.empty() || g.role == Role::kMuon, kInvalidArg, who, ": it has ",
                 p.parts.size(), " parts, but AdamW works element by element; leave them out");
  bool axis = p.normuon_axis != NormuonAxis::kOff;
  for (const PartSettings& part : p.parts) {
    const std::string where = cat(who, ": part '", part.name, "'");
    number(where, "scale_factor", part.scale_factor, 0, 1e30, false);
    number(where, "lr_factor", part.lr_factor, 0, 1e30, false);
    axis = axis || part.normuon_axis != NormuonAxis::kOff;
  }
  MUONRT_REQUIRE(
      !axis || g.normuon_axis != NormuonAxis::kOff, kInvalidArg, who,
      ": normuon_axis is set, but its group has NorMuon off; set the group's normuon_axis");
}

void check_master(const ParamSettings& p, const std::string& who, int64_t numel) {
  const bool of_bf16 =
      p.master_kind == MasterKind::kRemainder || p.master_kind == MasterKind::kStochastic;
  MUONRT_REQUIRE(!of_bf16 || p.dtype == DType::kBF16, kInvalidArg, who, ": master_kind is ",
                 name_of(p.master_kind), ", but dtype is ", name_of(p.dtype),
                 ", and only bf16 weights can be extended or rounded; use MUONRT_MASTER_NONE");
  MUONRT_REQUIRE(p.master_kind != MasterKind::kCaller || p.master || numel == 0, kInvalidArg, who,
                 ": master is NULL, but master_kind is MUONRT_MASTER_CALLER; pass the f32 shard");
  MUONRT_REQUIRE(p.master_kind == MasterKind::kCaller || !p.master, kInvalidArg, who,
                 ": master is set, but master_kind is ", static_cast<int32_t>(p.master_kind),
                 "; set it to MUONRT_MASTER_CALLER");
}

void check_owners(const ParamSettings& p, const std::string& who, Role role, int world) {
  if (p.owners.empty()) return;
  MUONRT_REQUIRE(p.owner == -1, kInvalidArg, who, ": owner is ", p.owner,
                 ", and owners is set, too; use one of them");
  MUONRT_REQUIRE(role == Role::kMuon && std::ssize(p.owners) == stack_size(p), kInvalidArg, who,
                 ": owners has ", p.owners.size(), " ranks, but ",
                 role == Role::kMuon ? cat("the parameter has ", stack_size(p), " matrices")
                                     : "AdamW parameters have no owners",
                 "; pass one rank for each matrix of a Muon parameter");
  for (size_t i = 0; i < p.owners.size(); ++i) {
    MUONRT_REQUIRE(p.owners[i] >= -1 && p.owners[i] < world, kInvalidArg, who, ": owners[", i,
                   "] is ", p.owners[i], ", but must be a rank, 0 to ", world - 1,
                   ", or -1 to let the plan choose; use one of them");
  }
}

void check_param(const OptimizerSettings& s, const ParamSettings& p, int rank, int world) {
  const std::string who = cat("param '", p.name, "'");
  MUONRT_REQUIRE(p.group >= 0 && p.group < static_cast<int32_t>(s.groups.size()), kInvalidArg, who,
                 ": group is ", p.group, ", but there are ", s.groups.size(),
                 " groups; use an index below that");
  const GroupSettings& group = s.groups[p.group];
  check_dtype(who, "dtype", p.dtype, "convert the buffer");
  check_dtype(who, "grad_dtype", p.grad_dtype, "convert the buffer");
  check_layouts(p, who, rank, world);
  const int64_t numel = p.layout.local_numel(rank);
  MUONRT_REQUIRE(p.data || numel == 0, kInvalidArg, who, ": data is NULL, but rank ", rank,
                 " holds ", numel, " elements; pass the local shard");
  check_gradients(s, p, who);
  MUONRT_REQUIRE(p.owner >= -1 && p.owner < world, kInvalidArg, who, ": owner is ", p.owner,
                 ", but must be a rank, 0 to ", world - 1,
                 ", or -1 to let the plan choose; use one of them");
  check_owners(p, who, group.role, world);
  if (group.role == Role::kMuon) check_matrix(p, who);
  check_parts(group, p, who);
  number(who, "lr_factor", p.lr_factor, 0, 1e30, false);
  validate_qk_clip(s, p);
  check_master(p, who, numel);
}

/// Checks the block periods. There is only one plan for block steps, so all groups with blocks must
/// have the same period.
void check_periods(const OptimizerSettings& s) {
  const GroupSettings* first = nullptr;
  for (const GroupSettings& g : s.groups) {
    if (g.role != Role::kMuon || g.blocks.period == 1) continue;
    if (!first) first = &g;
    MUONRT_REQUIRE(g.blocks.period == first->blocks.period, Status::kNotSupported, "group '",
                   g.name, "': block_period is ", g.blocks.period, ", but group '", first->name,
                   "' has ", first->blocks.period, "; set the same period for both groups, or 1");
    for (const GroupSettings& other : s.groups)
      MUONRT_REQUIRE(other.normuon_axis == NormuonAxis::kOff, Status::kNotSupported, "group '",
                     other.name, "': normuon_axis cannot be combined with block_period ",
                     g.blocks.period, " of group '", g.name,
                     "'; set block_period to 1, or normuon_axis to MUONRT_NORMUON_OFF");
    for (const ParamSettings& p : s.params)
      MUONRT_REQUIRE(
          p.layout.partial_dims().empty() && !p.grad_layout, Status::kNotSupported, "param '",
          p.name,
          "': its gradients are partial or have another layout, which cannot be combined with "
          "block_period ",
          g.blocks.period, " of group '", g.name,
          "'; reduce the gradients first, or set block_period to 1");
  }
}

void check_restarts(const GroupSettings& g, const std::string& who) {
  MUONRT_REQUIRE(
      !g.gram_restarts || g.form != FormChoice::kStandard, kInvalidArg, who,
      ": gram_restarts is set, but form is MUONRT_FORM_STANDARD, and only the Gram form has "
      "restarts; leave them out");
  int last = 0;
  for (const int i : g.gram_restarts.value_or(std::vector<int>{})) {
    MUONRT_REQUIRE(i > last && i < g.steps, kInvalidArg, who, ": gram_restarts are ",
                   *g.gram_restarts, ", but must be ascending from 1 to steps - 1, and steps is ",
                   g.steps, "; set steps before which X is rebuilt");
    last = i;
  }
}

}  // namespace

void validate(const GroupSettings& g, const std::string& who) {
  visit_group_fields(checks_of(who, g));
  check_restarts(g, who);
  const bool adamw = g.role == Role::kAdamW;
  MUONRT_REQUIRE(adamw || g.update_every == 1, kInvalidArg, who, ": update_every is ",
                 g.update_every, ", but Muon updates in every step; set it to 1");
  MUONRT_REQUIRE(!adamw || g.normuon_axis == NormuonAxis::kOff, kInvalidArg, who,
                 ": normuon_axis is ", static_cast<int32_t>(g.normuon_axis),
                 ", but AdamW has no matrices; set it to MUONRT_NORMUON_OFF");
  MUONRT_REQUIRE(g.normuon_axis == NormuonAxis::kOff || g.blocks.period == 1, Status::kNotSupported,
                 who, ": normuon_axis is set with block_period ", g.blocks.period,
                 ", but the rows of a block are not those of the matrix; use one of them");
  MUONRT_REQUIRE(!adamw || g.momentum_dtype == DType::kF32, kInvalidArg, who,
                 ": momentum_dtype is ", name_of(g.momentum_dtype),
                 ", but AdamW's moments are f32; set it to f32");
  MUONRT_REQUIRE(g.adamw_eps == 0 || std::isnormal(static_cast<float>(g.adamw_eps)), kInvalidArg,
                 who, ": adamw_eps is ", g.adamw_eps,
                 ", which f32 cannot represent; use 0 or a number from 1e-37");
  for (const Coefficients& c : g.custom) {
    for (const double value : {c.a, c.b, c.c})
      number(who, "custom coefficient", value, -1e6, 1e6, false);
  }
}

void validate(const OptimizerSettings& s, int rank, int world) {
  const std::string options = "options";
  visit_option_fields(checks_of(options, s));
  machine_of(s);
  MUONRT_REQUIRE(!s.exchange_callbacks.gather == !s.exchange_callbacks.redistribute, kInvalidArg,
                 "options: distributed: only ",
                 s.exchange_callbacks.gather ? "gather" : "redistribute",
                 " is set, but they replace the built-in exchanges together; set both or neither");
  MUONRT_REQUIRE(
      !s.exchange_callbacks || s.assign_owner, kInvalidArg,
      "options: distributed: gather and redistribute are set without assign, which determines "
      "the owners; set all three");
  MUONRT_REQUIRE(
      !s.exchange_callbacks || s.commit == CommitMode::kAtomic, Status::kNotSupported,
      "options: commit is eager, but gather and redistribute are set, and a chunk that is "
      "committed before one of them fails cannot be undone; use MUONRT_COMMIT_ATOMIC");
  qk_layers(s);
  for (size_t i = 0; i < s.groups.size(); ++i) {
    validate(s.groups[i], cat("group ", i, " '", s.groups[i].name, "'"));
  }
  check_periods(s);
  std::set<std::string> names;
  std::vector<Interval> buffers;
  for (const ParamSettings& p : s.params) {
    MUONRT_REQUIRE(names.insert(p.name).second, kInvalidArg, "param '", p.name,
                   "': its name occurs twice; give every parameter its own name");
    check_param(s, p, rank, world);
    const int64_t numel = p.layout.local_numel(rank);
    add_interval(buffers, p.data, numel, p.dtype, "data", p);
    add_interval(buffers, p.grad, grad_layout(p).local_numel(rank), p.grad_dtype, "grad", p);
    add_interval(buffers, p.master, numel, DType::kF32, "master", p);
  }
  check_overlaps(buffers);
}

}  // namespace muonrt
