#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muonrt/muonrt.h"

namespace muonrt::tool {

/// A block of rows or columns that is orthogonalized separately.
struct PartItem {
  std::string name;
  // number of rows or columns after the previous part; -1: use `runs`
  int64_t size = -1;
  std::vector<std::pair<int64_t, int64_t>> runs;  // ranges [begin, end), ascending
  std::optional<double> lr_factor;
  std::optional<std::string> normuon_axis;
};

/// The value of the key `parts`: how a matrix is divided into parts.
struct PartsConfig {
  std::string kind;             // "rows", "cols", "heads" or "qkv"; "" if there are no parts
  std::vector<PartItem> items;  // for rows and cols, and for heads with different settings
  int64_t heads = 0;
  int64_t groups = 0, q_per_group = 0, head_dim = 0;
  PartItem each;  // lr_factor and normuon_axis for heads, and defaults for q, k and v
  PartItem q, k, v;
};

struct MomentumSchedule {
  double from = 0.0;
  int64_t warmup_steps = 0, cooldown_steps = 0, total_steps = 0;
};

/// A schedule of the learning rate: either a function that returns factors of `lr`, or a list of
/// learning rates.
struct LrSchedule {
  std::string kind;  // "linear", "cosine" or "wsd"; empty if `rates` is used
  int64_t warmup_steps = 0, cooldown_steps = 0, total_steps = 0;
  double min_factor = 0.0;
  std::vector<double> rates;  // the last one applies to all later steps
};

struct BlocksConfig {
  int64_t rows = 1, cols = 1;  // size of the grid
  int64_t period = 1;
  double lr_factor = 1.0;
};

struct NorMuonConfig {
  std::string axis = "rows";
  double beta2 = 0.95;
};

struct QkClipConfig {
  std::string kind;
  int64_t layer = -1, head_dim = 0, nope = 0, rope = 0, v_dim = 0, heads = 0, kv_heads = 0;
  std::vector<int64_t> select;
  bool selected = false;
  double threshold = 100.0, exponent = 0.5;
};

/// Texts that describe a layout, in the format of the options of `muonrt layout`.
struct LayoutConfig {
  std::string placements, grad_placements, reading, cuts, row_bounds, owner, flat;
};

struct Triple {
  double a, b, c;
};

/// A function that sets a field of the C struct, and the roles to which the field applies.
struct Setting {
  enum Use { kBoth, kMuon, kAdamW } use;
  std::function<void(muonrt_group_t&)> set;
};

/// The settings of a parameter in opt.json. Missing settings have muonrt's defaults.
struct ParamConfig {
  std::string rule;                 // such as "rules[2]", for messages
  std::optional<std::string> role;  // "muon", "adamw" or "frozen"
  bool by_name = false;             // applies only to parameters whose names imply this role
  bool view_by_name = false;        // applies only to parameters whose names imply this view
  std::optional<std::string> view;  // "none", "stack" or "flatten"; absent means "none"
  LayoutConfig layout;
  PartsConfig parts;
  std::vector<Setting> fields;  // applied in this order, so later settings override earlier ones
  std::optional<bool> transposed;
  std::optional<int64_t> batch_dims, row_dims;
  std::optional<double> lr, lr_factor;
  std::optional<MomentumSchedule> momentum_schedule;
  std::optional<LrSchedule> lr_schedule;
  std::optional<int32_t> coefficients;
  std::vector<Triple> custom;    // MUONRT_COEFFICIENTS_CUSTOM
  std::optional<int32_t> owner;  // rank that owns all matrices of a parameter
  std::vector<int32_t> owners;   // instead of `owner`: one rank for each matrix of a stack
  std::optional<int32_t> priority;
  std::optional<int64_t> steps;
  std::optional<std::vector<int64_t>> gram_restarts;
  std::optional<BlocksConfig> blocks;
  std::optional<NorMuonConfig> normuon;
  std::optional<QkClipConfig> qk_clip;
  std::optional<int32_t> transport_dtype, master_kind;  // values of the C ABI
  // copies of the values that `fields` sets
  int32_t momentum_kind = MUONRT_MOMENTUM_EMA, momentum_dtype = MUONRT_DTYPE_F32;

  bool has_rates() const { return lr_schedule && lr_schedule->kind.empty(); }
  bool is_muon() const { return role == "muon"; }
  bool is_stack() const { return is_muon() && view == "stack"; }
};

/// A rule of opt.json. A rule without a role becomes consecutive rules, one for each role and view
/// that the name of a parameter can imply.
struct Rule {
  std::string pattern;
  ParamConfig config;        // includes the defaults of opt.json
  bool inherits_lr = false;  // the learning rate comes from the defaults
};

/// The content of an opt.json.
struct StepConfig {
  std::string file;
  std::vector<Rule> rules;
  uint64_t seed = 0;
  std::optional<double> clip_norm, grad_scale_inv;
  std::optional<int64_t> chunk_bytes, window, prefetch_count;
  std::optional<bool> async_parallelism, omit_inactive;
  std::optional<int32_t> commit, replica_mode, replica_check;  // values of the C ABI
  int64_t health_every = 0;
  bool allow_no_muon = false;

  /// Returns the index of the first rule that matches the parameter. A rule without a role in
  /// opt.json matches only parameters whose names imply its role. If no rule matches, throws a
  /// std::runtime_error that names the parameter.
  size_t rule_of(const std::string& param, const std::vector<int64_t>& shape) const;

  /// Throws std::runtime_error if there are Muon rules but none matches a parameter, because their
  /// patterns are then probably wrong.
  /// @param used  indices of the rules whose parameters the optimizer updates.
  void require_muon(const std::vector<size_t>& used) const;
};

/// Parses and checks the text of an opt.json. Throws std::runtime_error with the path of the key,
/// such as "opt.json: rules[2].parts.rows: ...".
/// @param file   the name for messages.
/// @param steps  the default of total_steps of an lr_schedule; 0 if a schedule must set
///     total_steps.
StepConfig parse_config(std::string_view text, const std::string& file, int64_t steps = 0);

/// Reads a file and parses it with parse_config(). Throws std::runtime_error if the file cannot be
/// read, and the errors of parse_config().
StepConfig read_config(const std::string& path);

}  // namespace muonrt::tool
