#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <type_traits>

#include "algo/coefficients.hpp"
#include "algo/newton_schulz.hpp"
#include "algo/update_scale.hpp"
#include "command/command.hpp"
#include "command/table.hpp"
#include "muonrt/optimizer.h"
#include "optimizer/settings/fields.hpp"

namespace muonrt::tool {

namespace {

/// The shortest text that reads back as the same number, which is JSON as well.
Cell plain(double value) { return {fmt::format("{}", value), fmt::format("{}", value)}; }

/// What the group's list has of its own.
CoefficientSettings own(const muonrt_group_t& g) {
  return default_settings(static_cast<CoefficientFamily>(g.coefficients));
}

/// A number or word; what stands for a choice made later says who makes it.
template <class Value>
Cell cell_of(Value value) {
  if constexpr (std::is_floating_point_v<Value>) {
    return plain(value);
  } else if constexpr (std::is_enum_v<Value>) {
    return cell::word(listed(value));
  } else {
    return cell::count(value);
  }
}
Cell cell_of(FormChoice form) {
  return cell::word(form == FormChoice::kAuto   ? "by shape"
                    : form == FormChoice::kGram ? "gram"
                                                : "standard");
}
Cell cell_of(NormuonAxis axis) { return cell::word(axis == NormuonAxis::kOff ? "off" : "on"); }
Cell cell_of(SafetyMode mode) { return cell::word(name_of(mode)); }
Cell cell_of(ScaleRule rule) { return cell::word(name_of(rule)); }
Cell cell_of(Replicas r) { return cell::word(r == Replicas::kOnce ? "once" : "not once"); }
Cell cell_of(SymmetricProvider provider) {
  return cell::word(provider == SymmetricProvider::kDefault ? "default" : "as set");
}

/// The value of a row in a C struct, as our settings have it.
template <class Settings, class Row, class C>
auto value_of(const Row& row, const C& from) {
  Settings* const none = nullptr;
  using Member = std::remove_reference_t<decltype(row.member(*none))>;
  return static_cast<typename ValueOf<Member>::type>(row.c_member(from));
}

Table group_table() {
  muonrt_group_t muon, adamw;
  muonrt_group_init(&muon, MUONRT_ROLE_MUON);
  muonrt_group_init(&adamw, MUONRT_ROLE_ADAMW);
  if (muon.safety == 0) muon.safety = own(muon).safety;
  if (muon.safety_mode == 0) muon.safety_mode = static_cast<int32_t>(own(muon).mode);
  Table table(
      {{"setting", "of a group", Table::Align::kLeft}, {"muon", "Muon"}, {"adamw", "AdamW"}});
  // Those of both roles, of Muon, of AdamW.
  for (const unsigned whose : {0u, unsigned{kMuonOnly}, unsigned{kAdamWOnly}}) {
    visit_group_fields([&](const auto& row) {
      if constexpr (requires { row.member; }) {
        const std::string name = row.name;
        if ((row.use & (kMuonOnly | kAdamWOnly)) != whose) return;
        if (name == "role" || name == "iteration_dtype") return;  // given; the optimizer's
        const auto of = [&](const muonrt_group_t& g) {
          return cell_of(value_of<GroupSettings>(row, g));
        };
        table.add({cell::word(name), whose == kAdamWOnly ? cell::nothing() : of(muon),
                   whose == kMuonOnly ? cell::nothing() : of(adamw)});
      }
    });
  }
  return table;
}

Table option_table() {
  muonrt_optimizer_options_t o;
  muonrt_optimizer_options_init(&o);
  Table table({{"setting", "of an optimizer", Table::Align::kLeft}, {"value", "value"}});
  const auto add = [&](const char* name, Cell value) { table.add({cell::word(name), value}); };
  add("device", cell::word(o.device == MUONRT_DEVICE_HOST ? "host" : "cuda"));
  o.max_peers = kMaxPeers;
  visit_option_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      const auto value = value_of<OptimizerSettings>(row, o);
      if (std::string(row.name) == "device_index") return;
      if (row.has(kZeroIsAbsent) && row.c_member(o) == 0) {
        add(row.name, cell::word("by device"));
      } else {
        add(row.name, cell_of(value));
      }
    }
  });
  add("allocator", cell::word(o.allocator ? "the caller's" : "none"));
  add("distributed", cell::word(o.distributed ? "the caller's" : "none"));
  return table;
}

int run(bool json) {
  if (json) {
    fmt::print("{}\n", json_object({{"group", group_table().json()},
                                    {"optimizer", option_table().json()}}));
    return 0;
  }
  fmt::print(
      "{}\n{}\nThe learning rate has no default; it is given at every step. The Gram form in bf16 "
      "and f16 has safety {} in mode {}\nwhere neither was set.\n",
      group_table().text(), option_table().text(), kHalfGramSafety, name_of(SafetyMode::kAll));
  return 0;
}

}  // namespace

void add_info_defaults(CLI::App& info, Work& work) {
  auto* command = info.add_subcommand("defaults", "every setting's default, from the code");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  command->footer("Example: muonrt info defaults");
  command->callback([=, &work] { work = [=] { return run(*json); }; });
}

}  // namespace muonrt::tool
