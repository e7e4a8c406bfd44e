#pragma once

#include <cstdint>
#include <span>

#include "algo/coefficients.hpp"
#include "base/deadline.hpp"

namespace muonrt {

// One row for each setting of a group or an optimizer whose value is a number, enum or bool.
// Everything that lists the settings is derived from these rows: the defaults, the conversion of
// the C structs (src/api), range checks, the comparison between ranks, changes between steps,
// `muonrt info defaults`, the keys of opt.json with their manual, and Python's keyword arguments.
// This header must contain only inline code, because tools/opt_json and tools/python compile it
// without linking the library's internals.

/// The name of a value of an enum, and its number in the C headers.
struct Word {
  const char* text;
  int32_t value;
};

/// The setting is a number in [low, high]. If `open` is true, it is in [low, high).
struct Number {
  double low, high;
  bool open = false;
  bool or_zero = false;  // if true, 0 is also valid and means a default
};
/// The setting is a number in [0, 1) that is still below 1 after it is rounded to f32.
struct Decay {};
/// The setting is 0, which means `none`, or a number in [kLeast, 1e30]. `why` explains in error
/// messages why the number cannot be smaller.
struct NumberOrNone {
  static constexpr double kLeast = 1e-30;
  const char *why, *none;
};
struct Integers {
  int64_t low, high;
};
struct Choice {
  std::span<const Word> words;
};
struct Flag {};
/// The setting is f32 or bf16.
struct StorageDType {};
struct AnyDType {};
/// The setting is the name of a machine, or the JSON text of a profile (plan/machine).
struct MachineText {};
/// Every value of the type is valid, or other code checks it.
struct Unchecked {};

enum FieldUse : unsigned {
  kChangeable = 0,    // a group's setting that may change between steps
  kFixed = 1,         // a group's setting that is fixed at creation
  kUnlisted = 2,      // a setting without an entry in the agreement table
  kZeroIsAbsent = 4,  // 0 in the C struct selects the default
  kGpuOnly = 8,       // a setting that always has its default on the host
  kMuonOnly = 16,
  kAdamWOnly = 32,
  kNoKey = 64  // a group's setting without its own key in opt.json (README.md)
};

/// @param name      Name in messages, in the C struct, in Python and in opt.json.
/// @param member    Function: member(settings) returns the member of GroupSettings or
///     OptimizerSettings.
/// @param c_member  Function: c_member(c_struct) returns the field of the C struct. The call
///     compiles only for a struct that has this field, so c_field() can find the right one of
///     several structs.
template <class Member, class CMember, class Rule>
struct Field {
  constexpr Field(const char* n, Member p, CMember c, Rule r, unsigned u = 0)
      : name(n), member(p), c_member(c), rule(r), use(u) {}
  constexpr bool has(FieldUse what) const { return (use & what) != 0; }

  const char* name;
  Member member;
  CMember c_member;
  Rule rule;
  unsigned use;
};

/// Returns the field of `row` in the C struct that has it: muonrt_optimizer_options_t, or one of
/// the structs to which it points (tuning, debug). Does not compile if no struct has the field.
template <class Row, class C, class... More>
constexpr auto& c_field(const Row& row, C& c_struct, More&... more) {
  if constexpr (requires { row.c_member(c_struct); }) {
    return row.c_member(c_struct);
  } else {
    return c_field(row, more...);
  }
}

/// An entry of the agreement table that is not a Field. text_of() (describe.hpp) returns its text.
struct ComparedEntry {
  const char* name;
};

/// Expands to the first three arguments of a Field. The setting is called `kPlace` in C++ and
/// `kName` in the C struct.
#define MUONRT_FIELD_AT(kName, kPlace)              \
#kName, [](auto& s) -> auto& { return s.kPlace; } \
  , [](auto& s) -> decltype((s.kName)) { return s.kName; }
#define MUONRT_FIELD(kName) MUONRT_FIELD_AT(kName, kName)

inline constexpr Word kRoles[] = {{"muon", 1}, {"adamw", 2}};
inline constexpr Word kMomentumKinds[] = {{"ema", 0}, {"heavy_ball", 1}, {"ema_corrected", 2}};
inline constexpr Word kCoefficients[] = {
    {"polar_express", 0}, {"keller_jordan", 1}, {"you_jiacheng", 2},
    {"cans", 3},          {"deepseek_v4", 4},   {"cubic", 5},
    {"classical", 6},     {"aol", 7},           {"custom", 100},
};
inline constexpr Word kSafetyModes[] = {{"auto", 0}, {"inner", 1}, {"all", 2}, {"none", 3}};
inline constexpr Word kNormalizations[] = {{"prescaled", 0}, {"add_eps", 1}, {"max_eps", 2}};
inline constexpr Word kRowScalings[] = {{"none", 0}, {"aol", 1}, {"equilibrate", 2}};
inline constexpr Word kScaleRules[] = {
    {"match_rms", 0}, {"original", 1}, {"ratio", 2}, {"max_dim", 3}, {"none", 4}};
inline constexpr Word kForms[] = {{"auto", 0}, {"standard", 1}, {"gram", 2}};
inline constexpr Word kDecays[] = {
    {"decoupled", 0}, {"independent", 1}, {"lr_squared", 2}, {"cautious", 3}};
inline constexpr Word kAdamForms[] = {{"torch", 0}, {"folded", 1}, {"nesterov", 2}};
inline constexpr Word kNormuonAxes[] = {{"off", 0}, {"rows", 1}, {"columns", 2}, {"longer", 3}};
inline constexpr Word kCommits[] = {{"atomic", 0}, {"eager", 1}};
inline constexpr Word kReplicas[] = {{"once", 0}, {"each", 1}, {"auto", 2}, {"every_rank", 3}};
inline constexpr Word kSymmetric[] = {{"default", 0}, {"vendor", 1}, {"sm90", 2}};
inline constexpr Word kReplicaChecks[] = {{"first", 0}, {"every", 1}, {"off", 2}};

constexpr Number kFactor = {0, 1e30};
constexpr int64_t kMaxBytes = int64_t{1} << 60;  // maximum size of a buffer
constexpr int kMaxBlocks = 1024;                 // maximum number along one dimension

/// Calls `visit` with each row, in the order in which ranks compare the settings. Most settings
/// that may change between steps come first.
template <class Visit>
void visit_group_fields(Visit&& visit) {
  visit(Field{MUONRT_FIELD(role), Choice{kRoles}, kFixed | kNoKey});
  visit(ComparedEntry{"name"});
  visit(Field{MUONRT_FIELD(lr_factor), kFactor, kNoKey});
  visit(Field{MUONRT_FIELD(weight_decay), kFactor});
  visit(Field{MUONRT_FIELD(momentum), Decay{}, kMuonOnly});
  visit(Field{MUONRT_FIELD(nesterov), Flag{}, kMuonOnly});
  visit(Field{MUONRT_FIELD(normuon_beta2), Decay{}, kMuonOnly | kNoKey});
  visit(Field{MUONRT_FIELD(beta1), Decay{}, kAdamWOnly | kNoKey});
  visit(Field{MUONRT_FIELD(beta2), Decay{}, kAdamWOnly | kNoKey});
  visit(Field{MUONRT_FIELD(adamw_eps), kFactor, kAdamWOnly});
  visit(Field{MUONRT_FIELD_AT(block_lr_factor, blocks.lr_factor), kFactor, kMuonOnly | kNoKey});
  visit(Field{MUONRT_FIELD(momentum_kind), Choice{kMomentumKinds}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(coefficients), Choice{kCoefficients}, kFixed | kMuonOnly | kNoKey});
  visit(Field{MUONRT_FIELD(steps), Integers{1, kMaxSteps}, kFixed | kMuonOnly | kNoKey});
  visit(Field{MUONRT_FIELD(lower_bound), Number{1e-12, 1, true}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(cushion), Number{0, 1, true}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(safety), Number{.low = 1, .high = 2, .or_zero = true},
              kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(safety_mode), Choice{kSafetyModes}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normalize), Choice{kNormalizations}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normalize_eps), kFactor, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(row_scaling), Choice{kRowScalings}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(renormalize), Flag{}, kFixed | kMuonOnly});
  visit(ComparedEntry{"gram_restarts"});
  visit(Field{MUONRT_FIELD(iteration_dtype), AnyDType{}, kFixed | kMuonOnly | kZeroIsAbsent});
  const auto count = Integers{1, kMaxBlocks};
  const unsigned of_blocks = kFixed | kMuonOnly | kNoKey;
  visit(Field{MUONRT_FIELD_AT(block_period, blocks.period), Integers{1, 1000000000}, of_blocks});
  visit(Field{MUONRT_FIELD_AT(block_rows, blocks.rows), count, of_blocks});
  visit(Field{MUONRT_FIELD_AT(block_cols, blocks.cols), count, of_blocks});
  visit(ComparedEntry{"custom"});
  visit(Field{MUONRT_FIELD(scale_rule), Choice{kScaleRules}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(scale_factor), kFactor, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(form), Choice{kForms}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(weight_decay_kind), Choice{kDecays}, kFixed});
  visit(Field{MUONRT_FIELD(adam_form), Choice{kAdamForms}, kFixed | kAdamWOnly});
  visit(Field{MUONRT_FIELD(update_every), Integers{1, 1 << 30}, kFixed | kAdamWOnly});
  visit(Field{MUONRT_FIELD(momentum_dtype), StorageDType{}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normuon_axis), Choice{kNormuonAxes}, kFixed | kMuonOnly | kNoKey});
}

/// Like visit_group_fields(), but for the options of an optimizer, which cannot change. In C, the
/// options are fields of muonrt_optimizer_options_t and of its `tuning` and `debug`. The option
/// `device` has no row, because it is read separately.
template <class Visit>
void visit_option_fields(Visit&& visit) {
  visit(Field{MUONRT_FIELD(transport_dtype), StorageDType{}});
  visit(Field{MUONRT_FIELD(iteration_dtype), AnyDType{}, kZeroIsAbsent});
  visit(ComparedEntry{"Gram form's dtype"});
  visit(Field{MUONRT_FIELD(commit), Choice{kCommits}});
  visit(Field{MUONRT_FIELD(window), Integers{1, 64}});
  visit(Field{MUONRT_FIELD(replica_mode), Choice{kReplicas}});
  visit(Field{MUONRT_FIELD(max_peers), Integers{0, 1 << 30}});
  visit(Field{MUONRT_FIELD(omit_inactive), Flag{}});
  visit(Field{MUONRT_FIELD(machine), MachineText{}, kZeroIsAbsent | kUnlisted});
  visit(ComparedEntry{"machine"});
  visit(Field{MUONRT_FIELD(chunk_bytes), Integers{1, kMaxBytes}, kZeroIsAbsent});
  visit(ComparedEntry{"serial"});
  visit(ComparedEntry{"distributed: assign"});
  visit(ComparedEntry{"distributed: gather and redistribute"});
  visit(Field{MUONRT_FIELD(portable_gemm), Flag{}});
  visit(Field{MUONRT_FIELD(seed), Unchecked{}});
  visit(Field{MUONRT_FIELD(clip_norm),
              NumberOrNone{"gradients clipped to it vanish in f32", "none"}});
  visit(Field{MUONRT_FIELD(health_every), Integers{0, int64_t{1} << 53}});
  visit(Field{MUONRT_FIELD(replica_check), Choice{kReplicaChecks}});
  // Ranks may differ in these options. Only the choice of muonrt's symmetric products must be
  // equal; ranks compare it in the description of the device.
  visit(Field{MUONRT_FIELD(device_index), Unchecked{}, kUnlisted});
  visit(Field{MUONRT_FIELD(threads), Integers{0, 256}, kUnlisted});
  visit(Field{MUONRT_FIELD(timeout_ms), Integers{1, kMaxTimeoutMs}, kUnlisted});
  visit(Field{MUONRT_FIELD(trace), Flag{}, kUnlisted});
  visit(Field{MUONRT_FIELD(poison), Flag{}, kUnlisted});
  visit(Field{MUONRT_FIELD(graphs), Flag{}, kUnlisted | kGpuOnly});
  visit(Field{MUONRT_FIELD(symmetric), Choice{kSymmetric}, kUnlisted | kGpuOnly});
}

#undef MUONRT_FIELD
#undef MUONRT_FIELD_AT

}  // namespace muonrt
