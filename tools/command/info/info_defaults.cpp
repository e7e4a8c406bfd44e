#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <type_traits>

#include "algo/coefficients.hpp"
#include "algo/newton_schulz.hpp"
#include "command/command.hpp"
#include "opt_json/optimizer_options.hpp"
#include "optimizer/settings/fields.hpp"
#include "plan/machine/named_profiles.hpp"
#include "plan/problem.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

/// Returns the shortest text that parses to the same number. The text is also valid JSON.
Cell number_cell(double value) { return {fmt::format("{}", value), fmt::format("{}", value)}; }

/// Returns the coefficient settings of the group.
CoefficientSettings own(const muonrt_group_t& g) {
  return default_settings(static_cast<CoefficientFamily>(g.coefficients));
}

std::string values_of(const Number& r) {
  return fmt::format("{}{} to {}{}", r.or_zero ? "0 or " : "", r.low, r.open ? "below " : "",
                     r.high);
}
std::string values_of(const Decay&) { return "0 to below 1"; }
std::string values_of(const NumberOrNone&) {
  return fmt::format("0 or {} to 1e+30", NumberOrNone::kLeast);
}
std::string values_of(const Integers& r) { return fmt::format("{} to {}", r.low, r.high); }
std::string values_of(const Choice& choice) {
  std::string out;
  for (const Word& word : choice.words) out += (out.empty() ? "" : ", ") + std::string(word.text);
  return out;
}
std::string values_of(const Flag&) { return "false, true"; }
std::string values_of(const StorageDType&) { return "f32, bf16"; }
std::string values_of(const AnyDType&) { return "f32, bf16, f16"; }
std::string values_of(const MachineText&) { return profile_names() + ", or a profile"; }
std::string values_of(const Unchecked&) { return "any number"; }

/// Returns a cell with the value of a field in the C struct. For an enum, this is the value's name.
template <class Row, class Value>
Cell cell_of(const Row& row, Value value) {
  using Rule = decltype(row.rule);
  if constexpr (std::is_same_v<Rule, Choice>) {
    for (const Word& word : row.rule.words)
      if (word.value == value) return cell::word(word.text);
    return cell::nothing();
  } else if constexpr (std::is_same_v<Rule, StorageDType> || std::is_same_v<Rule, AnyDType>) {
    return cell::word(name_of(static_cast<DType>(value)));
  } else if constexpr (std::is_same_v<Rule, Flag>) {
    return value ? Cell{"true", "true"} : Cell{"false", "false"};
  } else if constexpr (std::is_floating_point_v<Value>) {
    return number_cell(value);
  } else if constexpr (std::is_same_v<Rule, MachineText>) {
    return cell::word(value);
  } else {
    return cell::count(value);
  }
}

Table group_table() {
  muonrt_group_t muon = muon_group();
  const muonrt_group_t adamw = adamw_group();
  if (muon.safety == 0) muon.safety = own(muon).safety;
  if (muon.safety_mode == 0) muon.safety_mode = static_cast<int32_t>(own(muon).mode);
  Table table({{"setting", "of a group", Table::Align::kLeft},
               {"key", "in opt.json", Table::Align::kLeft},
               {"muon", "Muon"},
               {"adamw", "AdamW"},
               {"values", "values", Table::Align::kLeft}});
  // List settings of both roles first, then settings of Muon only, then settings of AdamW only.
  for (const unsigned whose : {0u, unsigned{kMuonOnly}, unsigned{kAdamWOnly}}) {
    visit_group_fields([&](const auto& row) {
      if constexpr (requires { row.member; }) {
        if ((row.use & (kMuonOnly | kAdamWOnly)) != whose || std::string(row.name) == "role")
          return;
        const auto of = [&](const muonrt_group_t& g, unsigned other) {
          if (whose == other) return cell::nothing();
          const auto value = row.c_member(g);
          return row.has(kZeroIsAbsent) && value == 0 ? cell::word("the optimizer's")
                                                      : cell_of(row, value);
        };
        table.add({cell::word(row.name), row.has(kNoKey) ? cell::nothing() : cell::word(row.name),
                   of(muon, kAdamWOnly), of(adamw, kMuonOnly), cell::word(values_of(row.rule))});
      }
    });
  }
  return table;
}

/// All three option structs in one object, so that a row can access every field by its name.
struct AllOptions : muonrt_optimizer_options_t, muonrt_tuning_options_t, muonrt_debug_options_t {};

Table option_table() {
  AllOptions o{options(), tuning_options(), debug_options()};
  Table table({{"setting", "of an optimizer", Table::Align::kLeft},
               {"value", "value"},
               {"values", "values", Table::Align::kLeft}});
  const auto add = [&](const char* name, Cell value, const std::string& values) {
    table.add({cell::word(name), std::move(value), cell::word(values)});
  };
  add("device", cell::word(o.device == MUONRT_DEVICE_HOST ? "host" : "cuda"), "host, cuda");
  o.max_peers = kMaxPeers;
  visit_option_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      const auto value = row.c_member(o);
      if (std::string(row.name) == "device_index") return;
      const bool absent = row.has(kZeroIsAbsent) && !value;
      add(row.name, absent ? cell::word("by device") : cell_of(row, value), values_of(row.rule));
    }
  });
  add("allocator", cell::word(o.allocator ? "the caller's" : "none"), "none, the caller's");
  add("distributed", cell::word(o.distributed ? "the caller's" : "none"), "none, the caller's");
  return table;
}

int run(bool json) {
  if (json) {
    fmt::print("{}\n", json_object({{"group", group_table().json()},
                                    {"optimizer", option_table().json()}}));
    return 0;
  }
  print_fitted(fmt::format(
      "{}\n{}\nThe learning rate has no default; it is set in every step. The Gram form in f16 "
      "has safety {} in mode all\nif neither is set.\n",
      group_table().text(), option_table().text(), kHalfGramSafety));
  return 0;
}

}  // namespace

void add_info_defaults(CLI::App& info, Work& work) {
  auto* command = info.add_subcommand("defaults", "the default of every setting");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->footer("Example: muonrt info defaults");
  command->callback([=, &work] { work = [=] { return run(*json); }; });
}

}  // namespace muonrt::tool
