#include "opt_json/config.hpp"

#include <algorithm>
#include <stdexcept>

#include "opt_json/glob.hpp"
#include "opt_json/roles.hpp"
#include "opt_json/schema.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

/// If a rule sets its own layout, removes the layout that it inherits from the defaults.
void drop_replaced_layout(ParamConfig& config, const Value& rule) {
  LayoutConfig& layout = config.layout;
  bool cuts = false;
  for (const char* key : {"cuts", "row_bounds", "owner", "flat"}) {
    cuts = cuts || rule.json.contains(key);
  }
  const bool placements = rule.json.contains("placements");
  if (cuts || placements) {
    layout.cuts.clear();
    layout.row_bounds.clear();
    layout.owner.clear();
    layout.flat.clear();
  }
  if (cuts) {
    layout.placements.clear();
    layout.reading.clear();
  }
}

/// Removes settings that a rule inherits from the defaults, but that do not apply to it:
/// lr_schedule, if it is a list of learning rates and the rule has its own lr; settings of Muon, if
/// the rule is for AdamW; batch_dims, if the view is not a stack; and gram_restarts, if the form is
/// standard. If the rule itself has such settings, they are kept here and rejected later.
void drop_inherited(ParamConfig& config, const Value& rule) {
  const auto own = [&](const char* key) { return rule.json.contains(key); };
  if (config.has_rates() && !own("lr_schedule") && own("lr")) config.lr_schedule.reset();
  if (config.role == "adamw") {
    // In a rule without a role, parts apply only to the Muon parameters.
    if (config.by_name || !own("parts")) config.parts = {};
    if (config.by_name || !own("qk_clip")) config.qk_clip.reset();
    if (config.by_name || !own("owners")) config.owner.reset(), config.owners.clear();
  }
  if (config.is_muon() && !config.is_stack() && !own("batch_dims")) config.batch_dims.reset();
  muonrt_group_t group{};
  for (const Setting& setting : config.fields) setting.set(group);
  if (group.form == MUONRT_FORM_STANDARD && !own("gram_restarts")) config.gram_restarts.reset();
  config.momentum_kind = group.momentum_kind;
  config.momentum_dtype = group.momentum_dtype;
}

/// If AdamW's learning rates do not fit the scale rule of a Muon rule, returns the name of this
/// scale rule, otherwise "".
std::string other_scale(const ParamConfig& c) {
  muonrt_group_t group{};
  for (const Setting& setting : c.fields) setting.set(group);
  if (!c.is_muon() || group.scale_rule == MUONRT_SCALE_MATCH_RMS) return "";
  return std::string(kScaleRules[group.scale_rule].text);
}

/// The AdamW rule `adamw` inherits the learning rate of the defaults. Rejects it if a Muon rule
/// also inherits this learning rate, and the scale of that rule's updates differs from AdamW's.
void check_inherited_rate(const StepConfig& config, const Rule& adamw) {
  for (const Rule& rule : config.rules) {
    const ParamConfig& c = rule.config;
    const std::string scale = other_scale(c);
    if (!adamw.inherits_lr || !rule.inherits_lr || scale.empty()) continue;
    throw std::runtime_error(
        adamw.config.rule +
        ".lr is missing, and the lr of defaults is not a rate of AdamW, because " + c.rule +
        " uses it with scale_rule " + scale + "; set lr in this rule, such as 3e-4");
  }
}

void check_layout(const ParamConfig& config, const Value& at) {
  const LayoutConfig& l = config.layout;
  const int last = !l.row_bounds.empty() + !l.owner.empty() + !l.flat.empty();
  if (last > 1) at.refuse("only one of row_bounds, owner and flat is allowed; remove the others");
  if (!l.placements.empty() && (last > 0 || !l.cuts.empty())) {
    at.refuse(
        "placements together with cuts, row_bounds, owner or flat are not allowed; remove one of "
        "them");
  }
  if (l.placements.empty() && !l.reading.empty() && (last > 0 || !l.cuts.empty())) {
    at.refuse("reading is set without placements, and cuts have only one reading; remove it");
  }
}

void check_rates(const Value& at) {
  if (at.json.contains("lr") && at.json.contains("lr_schedule") &&
      at.json["lr_schedule"].is_array())
    at.refuse("lr and a list of rates as lr_schedule are not allowed together; remove one of them");
}

/// Fills in missing values in a rule's schedule, and checks the schedule.
/// @param steps  the default of total_steps; 0 if the schedule must have total_steps.
void finish_schedule(ParamConfig& c, const Value& rule, int64_t steps) {
  if (!c.lr_schedule || c.has_rates()) return;
  const Value at{rule.json, rule.path + ".lr_schedule"};
  LrSchedule& s = *c.lr_schedule;
  if (s.total_steps == 0) s.total_steps = steps;
  if (s.total_steps == 0) at.refuse("total_steps is missing");
  const bool wsd = s.kind == "wsd";
  const int64_t least = s.warmup_steps + (wsd ? s.cooldown_steps : 1);
  if (s.total_steps >= least) return;
  at.refuse("total_steps is " + std::to_string(s.total_steps) + ", but warmup_steps " +
            std::to_string(s.warmup_steps) +
            (wsd ? " and cooldown_steps " + std::to_string(s.cooldown_steps) : "") +
            " need a number from " + std::to_string(least));
}

/// Fills in missing values in a rule with this role, and checks the rule.
void add_rule(StepConfig& out, Rule made, const Value& rule, int64_t steps) {
  ParamConfig& c = made.config;
  drop_inherited(c, rule);
  if (c.role != "frozen" && !c.lr && !c.has_rates())
    rule.refuse("lr is missing here and in defaults; set the learning rate");
  made.inherits_lr =
      !rule.json.contains("lr") && !(c.has_rates() && rule.json.contains("lr_schedule"));
  finish_schedule(c, rule, steps);
  out.rules.push_back(std::move(made));
}

void read_rules(StepConfig& out, const Value& list, const ParamConfig& defaults, int64_t steps) {
  list.require_list(1);
  for (size_t i = 0; i < list.json.size(); ++i) {
    const Value rule = list.at(i);
    rule.require_object();
    if (!rule.json.contains("name")) rule.refuse("name is missing");
    Rule made;
    made.pattern = rule.at("name").text();
    made.config = defaults;
    made.config.rule = rule.path;
    drop_replaced_layout(made.config, rule);
    nlohmann::json keys = rule.json;
    keys.erase("name");
    read_object(made.config, {keys, rule.path}, param_keys());
    check_layout(made.config, rule);
    check_rates(rule);
    for (const ParamConfig& config : roles_of(made.config)) {
      if (const std::string scale = other_scale(config); config.by_name && !scale.empty())
        rule.refuse("role is missing, so the rule may apply to both roles, but its scale_rule is " +
                    scale +
                    ", whose learning rates differ from AdamW's; write a rule for each role, with "
                    "its own lr");
      add_rule(out, {made.pattern, config}, rule, steps);
    }
  }
  for (const Rule& rule : out.rules)
    if (rule.config.role == "adamw") check_inherited_rate(out, rule);
}

const std::vector<Key<StepConfig>>& top_keys() {
  using S = StepConfig;
  const auto later = [](S&, const Value&) {};
  static const std::vector<Key<S>> keys = {
      {"about",
       [](S&, const Value& v) {
         v.require_object();
         for (const auto& [name, unused] : v.json.items()) v.at(name).text();
       }},
      {"defaults", later},
      {"rules", later},
      {"seed",
       [](S& out, const Value& v) {
         if (!v.json.is_number_unsigned()) {
           v.refuse("must be a whole number from 0 to 2^64 - 1, but is " + v.shown());
         }
         out.seed = v.json.get<uint64_t>();
       }},
      {"clip_norm",
       [](S& out, const Value& v) {
         out.clip_norm = v.null() ? std::nullopt : std::optional(v.number(1e-30, kHuge));
       }},
      {"grad_scale_inv",
       [](S& out, const Value& v) { out.grad_scale_inv = v.number(1e-30, kHuge); }},
      {"chunk_bytes", [](S& out, const Value& v) { out.chunk_bytes = v.bytes(); }},
      {"window", [](S& out, const Value& v) { out.window = v.integer(1, 64); }},
      {"prefetch_count", [](S& out, const Value& v) { out.prefetch_count = v.integer(0, 63); }},
      {"async_parallelism", [](S& out, const Value& v) { out.async_parallelism = v.boolean(); }},
      {"omit_inactive", [](S& out, const Value& v) { out.omit_inactive = v.boolean(); }},
      {"commit", [](S& out, const Value& v) { out.commit = v.choice(std::span(kCommits)); }},
      {"replica_mode",
       [](S& out, const Value& v) { out.replica_mode = v.choice(std::span(kReplicas)); }},
      {"replica_check",
       [](S& out, const Value& v) { out.replica_check = v.choice(std::span(kReplicaChecks)); }},
      {"health_every", [](S& out, const Value& v) { out.health_every = v.integer(0, kMaxSize); }},
      {"allow_no_muon", [](S& out, const Value& v) { out.allow_no_muon = v.boolean(); }}};
  return keys;
}

}  // namespace

size_t StepConfig::rule_of(const std::string& param, const std::vector<int64_t>& shape) const {
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!glob_matches(rules[i].pattern, param)) continue;
    if (!rules[i].config.by_name) return i;
    const RoleByName found = role_by_name(rules[i].config, param, shape, file);
    while (!found.fits(rules[i].config)) ++i;
    return i;
  }
  throw std::runtime_error(file + ": no rule matches the parameter " + shown(param) +
                           "; add one, with \"role\": \"frozen\" if it must not change");
}

void StepConfig::require_muon(const std::vector<size_t>& used) const {
  const auto muon = [](const Rule& rule) { return rule.config.is_muon(); };
  const auto first = std::find_if(rules.begin(), rules.end(), muon);
  const bool any =
      std::any_of(used.begin(), used.end(), [&](size_t rule) { return muon(rules[rule]); });
  if (allow_no_muon || any || used.empty() || first == rules.end()) return;
  const bool by_name = first->config.by_name;
  throw std::runtime_error(file + ": no parameter has the role muon: " + first->config.rule + " (" +
                           shown(first->pattern) + ") and all other rules " +
                           (by_name ? "without a role give it to " : "with this role match ") +
                           "none of the " + std::to_string(used.size()) + " parameters; " +
                           (by_name ? "set role in a rule for matrices" : "correct the patterns") +
                           ", or set \"allow_no_muon\": true");
}

StepConfig parse_config(std::string_view text, const std::string& file, int64_t steps) {
  StepConfig out;
  out.file = file;
  const nlohmann::json json = parse_strict(text, file);
  try {
    const Value top{json, ""};
    read_object(out, top, top_keys());
    if (out.window && out.prefetch_count)
      top.refuse("window is " + std::to_string(*out.window) + " and prefetch_count is " +
                 std::to_string(*out.prefetch_count) +
                 ", but prefetch_count + 1 is the window; remove one of them");
    ParamConfig defaults;
    if (json.contains("defaults")) {
      read_object(defaults, top.at("defaults"), param_keys());
      check_layout(defaults, top.at("defaults"));
      check_rates(top.at("defaults"));
    }
    if (!json.contains("rules")) top.refuse("rules are missing");
    read_rules(out, top.at("rules"), defaults, steps);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(file + ": " + e.what());
  }
  return out;
}

StepConfig read_config(const std::string& path) { return parse_config(read_text(path), path); }

}  // namespace muonrt::tool
