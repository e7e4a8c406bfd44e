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

/// A block of rows or columns that is orthogonalized by itself.
struct PartItem {
  std::string name;
  int64_t size = -1;                              // counted on from the part before; or
  std::vector<std::pair<int64_t, int64_t>> runs;  // [begin, end), ascending
  std::optional<double> lr_factor;
  std::optional<std::string> axis;  // of NorMuon
};

/// `parts`: what a matrix falls into.
struct PartsConfig {
  std::string kind;             // "": none; rows, cols, heads, qkv
  std::vector<PartItem> items;  // rows, cols; heads, where they differ
  int64_t heads = 0;
  int64_t groups = 0, q_per_group = 0, head_dim = 0;
  PartItem each;  // heads, and what q, k, v do not say: lr_factor, axis
  PartItem q, k, v;
};

struct MomentumSchedule {
  double from = 0.0;
  int64_t warmup_steps = 0, cooldown_steps = 0, total_steps = 0;
};

struct BlocksConfig {
  int64_t rows = 1, cols = 1;  // of the grid
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

/// The words of a layout, each in the form of `muonrt layout`.
struct LayoutConfig {
  std::string placements, grad_placements, reading, cuts, row_bounds, owner, flat;
};

struct Triple {
  double a, b, c;
};

/// A field of the C struct, and for which rules it is set.
struct Setting {
  enum Use { kBoth, kMuon, kAdamW } use;
  std::function<void(muonrt_group_t&)> set;
};

/// What opt.json says of a parameter. What it leaves out takes muonrt's default.
struct ParamConfig {
  std::string rule;  // "rules[2]", for messages
  std::optional<std::string> role;
  LayoutConfig layout;
  PartsConfig parts;
  std::vector<Setting> fields;  // in this order: of a field the last counts
  std::optional<bool> transposed;
  std::optional<int64_t> batch_dims, row_dims;
  std::optional<double> lr, lr_factor;
  std::optional<MomentumSchedule> momentum_schedule;
  std::optional<int32_t> coefficients;
  std::vector<Triple> custom;  // MUONRT_COEFFICIENTS_CUSTOM
  std::optional<int64_t> steps;
  std::optional<std::vector<int64_t>> restarts;
  std::optional<BlocksConfig> blocks;
  std::optional<NorMuonConfig> normuon;
  std::optional<QkClipConfig> qk_clip;
  std::optional<int32_t> transport_dtype, precision;  // values of the C ABI
  int32_t momentum_kind = MUONRT_MOMENTUM_EMA, momentum_dtype = MUONRT_DTYPE_F32;  // of `plain`
};

struct Rule {
  std::string pattern;
  ParamConfig config;  // over the defaults
};

/// opt.json.
struct StepConfig {
  std::string file;
  std::vector<Rule> rules;
  uint64_t seed = 0;
  std::optional<double> clip_norm, grad_scale_inv;
  std::optional<int64_t> chunk_bytes, window;
  std::optional<int32_t> commit, replicas, replica_check;  // values of the C ABI
  int64_t health_every = 0;
  bool allow_no_muon = false;

  /// Index of the first rule that matches. Throws std::runtime_error that names the parameter.
  size_t rule_of(const std::string& param) const;

  /// Throws std::runtime_error where rules are there for Muon, but every parameter has one for
  /// AdamW: names that do not fit, most likely. @param used  the rules of the parameters that step.
  void require_muon(const std::vector<size_t>& used) const;
};

/// Reads and checks opt.json. @param file  names it in messages.
/// Throws std::runtime_error that names the key by its path: "opt.json: rules[2].parts.rows: ...".
StepConfig parse_config(std::string_view text, const std::string& file);

/// The same from a file. Throws where it cannot be read.
StepConfig read_config(const std::string& path);

}  // namespace muonrt::tool
