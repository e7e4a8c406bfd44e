#include "optimizer/problem.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "build_info.hpp"
#include "optimizer/normuon.hpp"
#include "optimizer/qk_clip.hpp"
#include "optimizer/settings.hpp"

namespace muonrt {

namespace {

std::string text(double value) { return cat(value); }

std::string text(const std::vector<Coefficients>& list) {
  std::string out;
  for (const Coefficients& c : list) out += cat("(", c.a, ", ", c.b, ", ", c.c, ") ");
  return out;
}

/// The sizes above 1, and which ranks: what a layout's digest counts of a mesh. Of large ones the
/// first ranks, which differ where ranks name submeshes of their own.
std::string text(const Mesh& mesh) {
  constexpr size_t kShown = 32;
  std::string out;
  for (const int64_t n : mesh.shape()) {
    if (n > 1) out += cat(out.empty() ? "" : " x ", n);
  }
  out += out.empty() ? "rank" : " ranks";
  const std::vector<int32_t>& ranks = mesh.ranks();
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) out += cat(i ? ", " : " ", ranks[i]);
  return ranks.size() > kShown ? out + ", ..." : out;
}

NewtonSchulz make_one(const GroupSettings& group, const OptimizerSettings& all) {
  CoefficientSettings settings = default_settings(group.coefficients, group.steps);
  settings.lower_bound = group.lower_bound;
  if (group.coefficients == CoefficientFamily::kPolarExpress) settings.cushion = group.cushion;
  if (group.safety != 0) settings.safety = group.safety;
  if (group.safety_mode != SafetyMode::kAuto) settings.mode = group.safety_mode;
  settings.custom = group.custom;
  NewtonSchulzOptions options;
  options.gram_iteration = group.iteration ? group.iteration : all.gram_iteration;
  options.normalize = group.normalize;
  options.normalize_eps = group.normalize_eps;
  options.row_scaling = group.row_scaling;
  options.safety_chosen = group.safety != 0;
  options.mode_chosen = group.safety_mode != SafetyMode::kAuto;
  options.restarts = group.restarts;
  return muonrt::make_newton_schulz(group.coefficients, settings,
                                    group.iteration.value_or(all.iteration), options);
}

}  // namespace

std::vector<NewtonSchulz> make_newton_schulz(const OptimizerSettings& settings) {
  std::vector<NewtonSchulz> out(settings.groups.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const GroupSettings& g = settings.groups[i];
    if (g.role != Role::kMuon) continue;
    try {
      out[i] = make_one(g, settings);
    } catch (const Error& e) {
      throw Error(e.status(), cat("group ", i, " '", g.name, "': ", e.message()));
    }
  }
  return out;
}

namespace {

/// Rows and columns of `part` as a matrix of its own, with the scale of its shape.
MatrixPart matrix_part(std::string name, Runs rows, Runs cols, const PartSettings& part,
                       const ParamSettings& p, const GroupSettings& g) {
  const double rate = p.lr_factor * part.lr_factor;
  const double factor = g.scale_factor * part.scale_factor * rate;
  const double scale = update_scale(g.scale_rule, factor, length(rows), length(cols));
  return {std::move(name), std::move(rows), std::move(cols), scale,
          decay_scale(g.weight_decay_kind, rate)};
}

/// The blocks of a grid over a part, in ceil chunks; those that are empty are left out.
void add_blocks(std::vector<MatrixPart>& to, const PartSettings& part, const ParamSettings& p,
                const GroupSettings& g) {
  const int64_t rows = length(part.rows), cols = length(part.cols);
  const int64_t height = ceil_div(rows, g.blocks.rows), width = ceil_div(cols, g.blocks.cols);
  for (int64_t i = 0; i * height < rows; ++i) {
    for (int64_t j = 0; j * width < cols; ++j) {
      to.push_back(matrix_part(cat(part.name, part.name.empty() ? "" : " ", "block ", i, ",", j),
                               slice(part.rows, i * height, (i + 1) * height),
                               slice(part.cols, j * width, (j + 1) * width), part, p, g));
    }
  }
}

std::vector<MatrixPart> parts_of(const ParamSettings& p, const GroupSettings& g, bool in_blocks) {
  std::vector<MatrixPart> out;
  if (in_blocks && g.blocks.rows * g.blocks.cols > 1) {
    const auto& shape = p.layout.shape();
    PartSettings all;
    all.rows = whole(shape[shape.size() - 2]);
    all.cols = whole(shape.back());
    if (p.parts.empty()) add_blocks(out, all, p, g);
    for (const PartSettings& part : p.parts) add_blocks(out, part, p, g);
    return out;
  }
  for (const PartSettings& part : p.parts)
    out.push_back(matrix_part(part.name, part.rows, part.cols, part, p, g));
  return out;
}

FormChoice form_of(const NewtonSchulz& method, const ParamSettings& p, const GroupSettings& g) {
  try {
    return permitted_form(method, g.form);
  } catch (const Error& e) {
    throw Error(e.status(),
                cat("param '", p.name, "': group ", p.group, " '", g.name, "': ", e.message()));
  }
}

}  // namespace

int block_period(const OptimizerSettings& settings) {
  int period = 1;
  for (const GroupSettings& g : settings.groups) {
    if (g.role == Role::kMuon) period = std::max(period, g.blocks.period);
  }
  return period;
}

Problem make_problem(const OptimizerSettings& settings, const std::vector<NewtonSchulz>& methods,
                     int world, bool in_blocks) {
  Problem problem;
  problem.options.world = world;
  problem.options.transport = settings.transport;
  problem.options.chunk_bytes = settings.serial ? 1 : settings.chunk_bytes;
  problem.options.window = settings.serial ? 1 : settings.window;
  problem.options.commit = settings.commit;
  problem.options.replicas = settings.replicas;
  problem.options.max_peers = settings.max_peers;
  MachineRates& rates = problem.options.rates;
  if (settings.device == DeviceKind::kCuda) rates = kGpuRates;
  if (settings.machine_flops > 0) rates.flops = settings.machine_flops;
  if (settings.machine_bytes > 0) rates.bytes = settings.machine_bytes;
  if (settings.machine_message > 0) rates.message_seconds = settings.machine_message;
  problem.params.reserve(settings.params.size());
  for (const ParamSettings& p : settings.params) {
    const GroupSettings& g = settings.groups[p.group];
    const auto index = static_cast<int32_t>(&p - settings.params.data());
    ParamSpec spec;
    spec.name = p.name;
    spec.role = g.role;
    spec.layout = p.layout;
    spec.grad_layout = p.grad_layout;
    spec.dtype = p.dtype;
    spec.grad_dtype = p.grad_dtype;
    spec.group = p.group;
    spec.newton_schulz_steps = g.steps;
    spec.owner = p.owner;
    spec.carried = g.role == Role::kMuon && settings.functions;
    spec.travel = p.travel;
    spec.master = owns_master(p) || p.master_kind == MasterKind::kCaller ||
                  p.master_kind == MasterKind::kRemainder;
    if (g.role == Role::kMuon) {
      const auto& shape = p.layout.shape();
      spec.form = form_of(methods[p.group], p, g);
      spec.gram_restarts = methods[p.group].gram_restarts;
      spec.update_scale = update_scale(g.scale_rule, g.scale_factor * p.lr_factor,
                                       shape[shape.size() - 2], shape.back());
      spec.decay_scale = decay_scale(g.weight_decay_kind, p.lr_factor);
      spec.stack = p.view == View::kStack;
      spec.parts = parts_of(p, g, in_blocks && g.blocks.period > 1);
      spec.owner_bytes = normuon_bytes(settings, index);
    }
    problem.params.push_back(std::move(spec));
  }
  return problem;
}

void describe_scalars(Fingerprint& table, const std::string& who, const GroupSettings& g) {
  table.add(who + ": lr_factor", text(g.lr_factor));
  table.add(who + ": weight_decay", text(g.weight_decay));
  table.add(who + ": momentum", text(g.momentum));
  table.add(who + ": nesterov", g.nesterov ? "1" : "0");
  table.add(who + ": normuon_beta2", text(g.normuon_beta2));
  table.add(who + ": beta1", text(g.beta1));
  table.add(who + ": beta2", text(g.beta2));
  table.add(who + ": eps", text(g.eps));
  table.add(who + ": block_lr_factor", text(g.blocks.lr_factor));
}

Fingerprint make_fingerprint(const OptimizerSettings& s, const std::string& device) {
  Fingerprint table;
  table.add("muonrt version", build_info::kVersion);
  table.add("device", device);
  table.add("options: transport_dtype", name_of(s.transport));
  table.add("options: iteration_dtype", name_of(s.iteration));
  table.add("options: Gram form's dtype", name_of(s.gram_iteration.value_or(s.iteration)));
  table.add("options: commit", s.commit == CommitMode::kAtomic ? "atomic" : "eager");
  table.add("options: window", cat(s.window));
  table.add("options: replicas", cat(static_cast<int32_t>(s.replicas)));
  table.add("options: max_peers", cat(s.max_peers));
  table.add("options: machine's rates",
            cat(s.machine_flops, ", ", s.machine_bytes, ", ", s.machine_message));
  table.add("options: chunk_bytes", cat(s.chunk_bytes));
  table.add("options: exchange_groups", cat(static_cast<int32_t>(s.groups_of_exchanges)));
  table.add("options: serial", cat(s.serial));
  table.add("options: distributed: assign", s.assign ? "given" : "none");
  table.add("options: distributed: gather and redistribute", s.functions ? "given" : "none");
  table.add("options: portable_gemm", cat(s.portable_gemm));
  table.add("options: seed", cat(s.seed));
  table.add("options: clip_norm", text(s.clip_norm));
  table.add("options: health_every", cat(s.health_every));
  table.add("number of groups", cat(s.groups.size()));
  table.add("number of parameters", cat(s.params.size()));
  for (size_t i = 0; i < s.groups.size(); ++i) {
    const GroupSettings& g = s.groups[i];
    const std::string who = cat("group ", i);
    table.add(who + ": role", g.role == Role::kMuon ? "muon" : "adamw");
    table.add(who + ": name", cat("'", g.name, "'"));
    describe_scalars(table, who, g);
    table.add(who + ": momentum_kind",
              g.momentum_kind == MomentumKind::kEma ? "ema" : "heavy_ball");
    table.add(who + ": coefficients", name_of(g.coefficients));
    table.add(who + ": steps", cat(g.steps));
    table.add(who + ": lower_bound", text(g.lower_bound));
    table.add(who + ": cushion", text(g.cushion));
    table.add(who + ": safety", text(g.safety));
    table.add(who + ": safety_mode", cat(static_cast<int32_t>(g.safety_mode)));
    table.add(who + ": normalize", name_of(g.normalize));
    table.add(who + ": normalize_eps", text(g.normalize_eps));
    table.add(who + ": row_scaling", name_of(g.row_scaling));
    table.add(who + ": restarts", g.restarts ? cat(*g.restarts) : "searched");
    table.add(who + ": iteration_dtype", g.iteration ? name_of(*g.iteration) : "the optimizer's");
    table.add(who + ": blocks",
              cat(g.blocks.rows, " x ", g.blocks.cols, ", period ", g.blocks.period));
    table.add(who + ": custom", text(g.custom));
    table.add(who + ": scale_rule", cat(static_cast<int32_t>(g.scale_rule)));
    table.add(who + ": scale_factor", text(g.scale_factor));
    table.add(who + ": form", cat(static_cast<int32_t>(g.form)));
    table.add(who + ": weight_decay_kind", name_of(g.weight_decay_kind));
    table.add(who + ": adam_form", g.adam_form == AdamForm::kTorch ? "torch" : "folded");
    table.add(who + ": update_every", cat(g.update_every));
    table.add(who + ": momentum_dtype", name_of(g.momentum_dtype));
    table.add(who + ": normuon", cat(static_cast<int32_t>(g.normuon)));
  }
  for (size_t i = 0; i < s.params.size(); ++i) {
    const ParamSettings& p = s.params[i];
    table.add(cat("name of param ", i), cat("'", p.name, "'"));
    const std::string who = cat("param '", p.name, "'");
    table.add(who + ": shape", cat(p.layout.shape()));
    table.add(who + ": dtype", name_of(p.dtype));
    table.add(who + ": grad_dtype", name_of(p.grad_dtype));
    table.add(who + ": group", cat(p.group));
    table.add(who + ": mesh", text(p.layout.mesh()));
    table.add(who + ": layout", p.layout.describe());
    table.add(who + ": layout digest", cat(p.layout.hash()));
    table.add(who + ": mesh of the gradient's layout", text(grad_layout(p).mesh()));
    table.add(who + ": gradient's layout", grad_layout(p).describe());
    table.add(who + ": digest of the gradient's layout", cat(grad_layout(p).hash()));
    table.add(who + ": owner", cat(p.owner));
    table.add(who + ": travel", cat(p.travel));
    table.add(who + ": view", cat(static_cast<int32_t>(p.view)));
    table.add(who + ": lr_factor", text(p.lr_factor));
    table.add(who + ": normuon_axis", cat(static_cast<int32_t>(p.normuon_axis)));
    table.add(who + ": qk_clip", describe(p.qk_clip));
    table.add(who + ": number of parts", cat(p.parts.size()));
    for (const PartSettings& part : p.parts) {
      table.add(
          cat(who, ": part '", part.name, "'"),
          cat("rows ", to_text(part.rows), ", columns ", to_text(part.cols), ", scale_factor ",
              text(part.scale_factor), ", lr_factor ", text(part.lr_factor), ", normuon_axis ",
              static_cast<int32_t>(part.normuon_axis)));
    }
    table.add(who + ": master weights",
              owns_master(p) ? "owned"
                             : name_of(p.master_kind == MasterKind::kAuto ? MasterKind::kNone
                                                                          : p.master_kind));
  }
  return table;
}

}  // namespace muonrt
