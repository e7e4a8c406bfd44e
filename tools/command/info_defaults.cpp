#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "algo/coefficients.hpp"
#include "algo/newton_schulz.hpp"
#include "algo/update_scale.hpp"
#include "command/command.hpp"
#include "command/table.hpp"
#include "muonrt/optimizer.h"
#include "optimizer/settings.hpp"

namespace muonrt::tool {

namespace {

/// The shortest text that reads back as the same number, which is JSON as well.
Cell plain(double value) { return {fmt::format("{}", value), fmt::format("{}", value)}; }

const char* dtype_name(int32_t dtype) {
  return dtype == MUONRT_DTYPE_F32 ? "f32" : dtype == MUONRT_DTYPE_BF16 ? "bf16" : "by device";
}

/// What the group's list has of its own.
CoefficientSettings own(const muonrt_group_t& g) {
  return default_settings(static_cast<CoefficientFamily>(g.coefficients));
}

/// One setting of a group; `muon` and `adamw` say whose it is.
struct Setting {
  const char* name;
  bool muon, adamw;
  std::function<Cell(const muonrt_group_t&)> value;
};

std::vector<Setting> group_settings() {
  using Group = muonrt_group_t;
  const auto name = [](auto code) { return cell::word(name_of(code)); };
  return {
      {"lr_factor", true, true, [](const Group& g) { return plain(g.lr_factor); }},
      {"weight_decay", true, true, [](const Group& g) { return plain(g.weight_decay); }},
      {"weight_decay_kind", true, true,
       [=](const Group& g) { return name(static_cast<WeightDecayKind>(g.weight_decay_kind)); }},
      {"momentum", true, false, [](const Group& g) { return plain(g.momentum); }},
      {"momentum_dtype", true, false,
       [](const Group& g) { return cell::word(dtype_name(g.momentum_dtype)); }},
      {"momentum_kind", true, false,
       [](const Group& g) {
         return cell::word(g.momentum_kind == MUONRT_MOMENTUM_EMA ? "ema" : "heavy_ball");
       }},
      {"nesterov", true, false, [](const Group& g) { return cell::count(g.nesterov); }},
      {"coefficients", true, false,
       [=](const Group& g) { return name(static_cast<CoefficientFamily>(g.coefficients)); }},
      {"steps", true, false, [](const Group& g) { return cell::count(g.steps); }},
      {"lower_bound", true, false, [](const Group& g) { return plain(g.lower_bound); }},
      {"cushion", true, false, [](const Group& g) { return plain(g.cushion); }},
      {"safety", true, false,
       [](const Group& g) { return plain(g.safety == 0 ? own(g).safety : g.safety); }},
      {"safety_mode", true, false,
       [=](const Group& g) {
         return name(g.safety_mode ? static_cast<SafetyMode>(g.safety_mode) : own(g).mode);
       }},
      {"normalize", true, false,
       [=](const Group& g) { return name(static_cast<Normalize>(g.normalize)); }},
      {"normalize_eps", true, false, [](const Group& g) { return plain(g.normalize_eps); }},
      {"row_scaling", true, false,
       [=](const Group& g) { return name(static_cast<RowScaling>(g.row_scaling)); }},
      {"block_period", true, false, [](const Group& g) { return cell::count(g.block_period); }},
      {"block_rows", true, false, [](const Group& g) { return cell::count(g.block_rows); }},
      {"block_cols", true, false, [](const Group& g) { return cell::count(g.block_cols); }},
      {"block_lr_factor", true, false, [](const Group& g) { return plain(g.block_lr_factor); }},
      {"scale_rule", true, false,
       [=](const Group& g) { return name(static_cast<ScaleRule>(g.scale_rule)); }},
      {"scale_factor", true, false, [](const Group& g) { return plain(g.scale_factor); }},
      {"form", true, false,
       [](const Group& g) {
         return cell::word(g.form == MUONRT_FORM_AUTO   ? "by shape"
                           : g.form == MUONRT_FORM_GRAM ? "gram"
                                                        : "standard");
       }},
      {"normuon", true, false,
       [](const Group& g) { return cell::word(g.normuon == MUONRT_NORMUON_OFF ? "off" : "on"); }},
      {"normuon_beta2", true, false, [](const Group& g) { return plain(g.normuon_beta2); }},
      {"beta1", false, true, [](const Group& g) { return plain(g.beta1); }},
      {"beta2", false, true, [](const Group& g) { return plain(g.beta2); }},
      {"eps", false, true, [](const Group& g) { return plain(g.eps); }},
      {"adam_form", false, true,
       [](const Group& g) {
         return cell::word(g.adam_form == MUONRT_ADAM_TORCH ? "torch" : "folded");
       }},
      {"update_every", false, true, [](const Group& g) { return cell::count(g.update_every); }},
  };
}

Table group_table() {
  muonrt_group_t muon, adamw;
  muonrt_group_init(&muon, MUONRT_ROLE_MUON);
  muonrt_group_init(&adamw, MUONRT_ROLE_ADAMW);
  Table table(
      {{"setting", "of a group", Table::Align::kLeft}, {"muon", "Muon"}, {"adamw", "AdamW"}});
  for (const Setting& s : group_settings()) {
    table.add({cell::word(s.name), s.muon ? s.value(muon) : cell::nothing(),
               s.adamw ? s.value(adamw) : cell::nothing()});
  }
  return table;
}

Table option_table() {
  muonrt_optimizer_options_t o;
  muonrt_optimizer_options_init(&o);
  Table table({{"setting", "of an optimizer", Table::Align::kLeft}, {"value", "value"}});
  const auto add = [&](const char* name, Cell value) { table.add({cell::word(name), value}); };
  add("device", cell::word(o.device == MUONRT_DEVICE_HOST ? "host" : "cuda"));
  add("threads", cell::count(o.threads));
  add("transport_dtype", cell::word(dtype_name(o.transport_dtype)));
  add("iteration_dtype", cell::word(dtype_name(o.iteration_dtype)));
  add("commit", cell::word(o.commit == MUONRT_COMMIT_ATOMIC ? "atomic" : "eager"));
  add("window", cell::count(o.window));
  add("chunk_bytes", o.chunk_bytes == 0 ? cell::word("by device") : cell::bytes(o.chunk_bytes));
  add("timeout_ms", cell::count(o.timeout_ms));
  add("seed", cell::count(o.seed));
  add("clip_norm", plain(o.clip_norm));
  add("health_every", cell::count(o.health_every));
  add("max_peers", cell::count(kMaxPeers));
  add("replicas", cell::word(o.replicas == MUONRT_REPLICAS_ONCE ? "once" : "not once"));
  for (const auto& [name, value] : {std::pair{"machine_flops", o.machine_flops},
                                    {"machine_bytes", o.machine_bytes},
                                    {"machine_message_seconds", o.machine_message_seconds}})
    add(name, value == 0 ? cell::word("by device") : plain(value));
  add("symmetric", cell::word(o.symmetric == MUONRT_SYMMETRIC_DEFAULT ? "default" : "as set"));
  add("reserved_sms",
      o.reserved_sms < 0 ? cell::word("by exchanges") : cell::count(o.reserved_sms));
  for (const auto& [name, value] : {std::pair{"graphs", o.graphs},
                                    {"stream_ordered", o.stream_ordered},
                                    {"portable_gemm", o.portable_gemm},
                                    {"trace", o.trace},
                                    {"poison", o.poison}})
    add(name, cell::count(value));
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
