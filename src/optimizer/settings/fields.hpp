#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "base/deadline.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

// The plain settings of a group and of an optimizer, one row each: reading, defaults, validation,
// comparison between ranks, changes between steps and `muonrt info defaults` all come from here.

/// A number in [low, high], or in [low, high).
struct Number {
  double low, high;
  bool open = false;
  bool or_zero = false;  // 0 stands for a default
};
/// A number in [0, 1), also once it is rounded to f32.
struct Decay {};
/// 0, for `none`, or a number in [1e-30, 1e30], and why no smaller one.
struct NumberOrNone {
  const char *why, *none;
};
struct Integers {
  int64_t low, high;
};
/// The values of an enum, as the C headers number them: those of [first, last], and one besides.
struct Choice {
  int32_t first, last, besides = first;
};
struct Flag {};
/// f32 or bf16.
struct StorageDType {};
struct AnyDType {};
/// Every value of the type, or what plain code checks.
struct Unchecked {};

enum FieldUse : unsigned {
  kChangeable = 0,    // of a group: between steps
  kFixed = 1,         // of a group: set at creation
  kUnlisted = 2,      // has no line of its own in what ranks compare
  kZeroIsAbsent = 4,  // 0 in the C struct leaves the default
  kGpuOnly = 8,       // keeps its default on the host
  kMuonOnly = 16,
  kAdamWOnly = 32
};

/// @param name    in messages and in the C struct.
/// @param member   where it is in our settings: member(settings) is the member.
/// @param c_member where it is in the C struct, which floor 6 does not know.
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

/// A line of what ranks compare that is no plain setting, or of several.
template <class Settings>
struct Line {
  const char* name;
  std::string (*text)(const Settings&);
};

/// What a field holds; of an optional one, what it may hold.
template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

/// A setting in a message: by its name where it has one, else as the C headers number it.
template <class T>
std::string shown(const T& value) {
  if constexpr (requires { name_of(value); }) {
    return name_of(value);
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
    return cat(static_cast<int32_t>(value));
  } else {
    return cat(value);
  }
}
inline std::string shown(const std::optional<DType>& dtype) {
  return dtype ? name_of(*dtype) : "the optimizer's";
}

/// The same in what ranks compare: words and numbers as they were from the first.
template <class T>
std::string listed(const T& value) {
  return shown(value);
}
inline std::string listed(Role role) { return role == Role::kMuon ? "muon" : "adamw"; }
inline std::string listed(MomentumKind k) {
  if (k == MomentumKind::kEmaCorrected) return "ema_corrected";
  return k == MomentumKind::kEma ? "ema" : "heavy_ball";
}
inline std::string listed(AdamForm form) {
  if (form == AdamForm::kNesterov) return "nesterov";
  return form == AdamForm::kTorch ? "torch" : "folded";
}
inline std::string listed(CommitMode c) { return c == CommitMode::kAtomic ? "atomic" : "eager"; }
inline std::string listed(SafetyMode mode) { return cat(static_cast<int32_t>(mode)); }
inline std::string listed(ScaleRule rule) { return cat(static_cast<int32_t>(rule)); }
std::string listed(const std::vector<Coefficients>& list);

/// `kPlace` of our settings and `kName` of the C struct, as a Field wants them.
#define MUONRT_FIELD_AT(kName, kPlace)              \
#kName, [](auto& s) -> auto& { return s.kPlace; } \
  , [](auto& s) -> auto& { return s.kName; }
#define MUONRT_FIELD(kName) MUONRT_FIELD_AT(kName, kName)

constexpr Number kFactor = {0, 1e30};
constexpr int64_t kMostBytes = int64_t{1} << 60;  // of a buffer
constexpr int kMaxBlocks = 1024;                  // along one dimension

/// Calls `visit` with each row, in the order in which ranks compare them: what may change first.
template <class Visit>
void visit_group_fields(Visit&& visit) {
  using G = GroupSettings;
  visit(Field{MUONRT_FIELD(role), Choice{1, 2}, kFixed});
  visit(Line<G>{"name", [](const G& g) { return cat("'", g.name, "'"); }});
  visit(Field{MUONRT_FIELD(lr_factor), kFactor});
  visit(Field{MUONRT_FIELD(weight_decay), kFactor});
  visit(Field{MUONRT_FIELD(momentum), Decay{}, kMuonOnly});
  visit(Field{MUONRT_FIELD(nesterov), Flag{}, kMuonOnly});
  visit(Field{MUONRT_FIELD(normuon_beta2), Decay{}, kMuonOnly});
  visit(Field{MUONRT_FIELD(beta1), Decay{}, kAdamWOnly});
  visit(Field{MUONRT_FIELD(beta2), Decay{}, kAdamWOnly});
  visit(Field{MUONRT_FIELD(eps), kFactor, kAdamWOnly});
  visit(Field{MUONRT_FIELD_AT(block_lr_factor, blocks.lr_factor), kFactor, kMuonOnly});
  visit(Field{MUONRT_FIELD(momentum_kind), Choice{0, 2}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(coefficients), Choice{0, 7, 100}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(steps), Integers{1, kMaxSteps}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(lower_bound), Number{1e-12, 1, true}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(cushion), Number{0, 1, true}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(safety), Number{.low = 1, .high = 2, .or_zero = true},
              kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(safety_mode), Choice{0, 3}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normalize), Choice{0, 2}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normalize_eps), kFactor, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(row_scaling), Choice{0, 1}, kFixed | kMuonOnly});
  visit(Line<G>{"restarts", [](const G& g) { return g.restarts ? cat(*g.restarts) : "searched"; }});
  visit(Field{MUONRT_FIELD_AT(iteration_dtype, iteration), AnyDType{},
              kFixed | kMuonOnly | kZeroIsAbsent});
  const auto count = Integers{1, kMaxBlocks};
  const unsigned of_blocks = kFixed | kMuonOnly | kUnlisted;
  visit(Field{MUONRT_FIELD_AT(block_period, blocks.period), Integers{1, 1000000000}, of_blocks});
  visit(Field{MUONRT_FIELD_AT(block_rows, blocks.rows), count, of_blocks});
  visit(Field{MUONRT_FIELD_AT(block_cols, blocks.cols), count, of_blocks});
  visit(Line<G>{"blocks", [](const G& g) {
                  return cat(g.blocks.rows, " x ", g.blocks.cols, ", period ", g.blocks.period);
                }});
  visit(Line<G>{"custom", [](const G& g) { return listed(g.custom); }});
  visit(Field{MUONRT_FIELD(scale_rule), Choice{0, 4}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(scale_factor), kFactor, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(form), Choice{0, 2}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(weight_decay_kind), Choice{0, 3}, kFixed});
  visit(Field{MUONRT_FIELD(adam_form), Choice{0, 2}, kFixed | kAdamWOnly});
  visit(Field{MUONRT_FIELD(update_every), Integers{1, 1 << 30}, kFixed | kAdamWOnly});
  visit(Field{MUONRT_FIELD(momentum_dtype), StorageDType{}, kFixed | kMuonOnly});
  visit(Field{MUONRT_FIELD(normuon), Choice{0, 3}, kFixed | kMuonOnly});
}

/// The same for the optimizer's; nothing of it changes. `device` is read first, by itself.
template <class Visit>
void visit_option_fields(Visit&& visit) {
  using S = OptimizerSettings;
  const NumberOrNone rate = {"the time of a step would not be finite", "the device's own"};
  const unsigned of_machine = kUnlisted | kZeroIsAbsent;
  visit(Field{MUONRT_FIELD_AT(transport_dtype, transport), StorageDType{}});
  visit(Field{MUONRT_FIELD_AT(iteration_dtype, iteration), AnyDType{}, kZeroIsAbsent});
  visit(Line<S>{"Gram form's dtype", [](const S& s) -> std::string {
                  return name_of(s.gram_iteration.value_or(s.iteration));
                }});
  visit(Field{MUONRT_FIELD(commit), Choice{0, 1}});
  visit(Field{MUONRT_FIELD(window), Integers{1, 64}});
  visit(Field{MUONRT_FIELD(replicas), Choice{0, 2}});
  visit(Field{MUONRT_FIELD(max_peers), Integers{0, 1 << 30}});
  visit(Field{MUONRT_FIELD(machine_flops), rate, of_machine});
  visit(Field{MUONRT_FIELD(machine_bytes), rate, of_machine});
  visit(Field{MUONRT_FIELD_AT(machine_message_seconds, machine_message), rate, of_machine});
  visit(Line<S>{"machine's rates", [](const S& s) {
                  return cat(s.machine_flops, ", ", s.machine_bytes, ", ", s.machine_message);
                }});
  visit(Field{MUONRT_FIELD(chunk_bytes), Integers{1, kMostBytes}, kZeroIsAbsent});
  visit(Line<S>{"serial", [](const S& s) { return cat(s.serial); }});
  visit(Line<S>{"distributed: assign",
                [](const S& s) -> std::string { return s.assign ? "given" : "none"; }});
  visit(Line<S>{"distributed: gather and redistribute",
                [](const S& s) -> std::string { return s.functions ? "given" : "none"; }});
  visit(Field{MUONRT_FIELD(portable_gemm), Flag{}, kUnlisted});
  visit(Line<S>{"portable_gemm", [](const S& s) { return cat(s.portable_gemm); }});
  visit(Field{MUONRT_FIELD(seed), Unchecked{}});
  visit(Field{MUONRT_FIELD(clip_norm),
              NumberOrNone{"gradients clipped to it vanish in f32", "none"}});
  visit(Field{MUONRT_FIELD(health_every), Integers{0, int64_t{1} << 53}});
  visit(Field{MUONRT_FIELD(replica_check), Choice{0, 2}});
  // Ranks may differ in these; but own symmetric products are named in the device's line.
  visit(Field{MUONRT_FIELD(device_index), Unchecked{}, kUnlisted});
  visit(Field{MUONRT_FIELD(threads), Integers{1, 256}, kUnlisted});
  visit(Field{MUONRT_FIELD(timeout_ms), Integers{1, kMaxTimeoutMs}, kUnlisted});
  visit(Field{MUONRT_FIELD(trace), Flag{}, kUnlisted});
  visit(Field{MUONRT_FIELD(poison), Flag{}, kUnlisted});
  visit(Field{MUONRT_FIELD(graphs), Flag{}, kUnlisted | kGpuOnly});
  visit(Field{MUONRT_FIELD(symmetric), Choice{0, 3}, kUnlisted | kGpuOnly});
  visit(Field{MUONRT_FIELD(reserved_sms), Integers{-1, 1024}, kUnlisted | kGpuOnly});
  visit(Field{MUONRT_FIELD(stream_ordered), Flag{}, kUnlisted | kGpuOnly});
}

#undef MUONRT_FIELD
#undef MUONRT_FIELD_AT

}  // namespace muonrt
