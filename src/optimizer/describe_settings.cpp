#include "optimizer/describe_settings.hpp"

#include <algorithm>

#include "build_info.hpp"
#include "optimizer/qk_clip.hpp"

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

void describe_options(Fingerprint& table, const OptimizerSettings& s) {
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
  table.add("options: serial", cat(s.serial));
  table.add("options: distributed: assign", s.assign ? "given" : "none");
  table.add("options: distributed: gather and redistribute", s.functions ? "given" : "none");
  table.add("options: portable_gemm", cat(s.portable_gemm));
  table.add("options: seed", cat(s.seed));
  table.add("options: clip_norm", text(s.clip_norm));
  table.add("options: health_every", cat(s.health_every));
}

void describe_group(Fingerprint& table, const std::string& who, const GroupSettings& g) {
  table.add(who + ": role", g.role == Role::kMuon ? "muon" : "adamw");
  table.add(who + ": name", cat("'", g.name, "'"));
  describe_scalars(table, who, g);
  table.add(who + ": momentum_kind", g.momentum_kind == MomentumKind::kEma ? "ema" : "heavy_ball");
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

void describe_param(Fingerprint& table, const std::string& who, const ParamSettings& p) {
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
    table.add(cat(who, ": part '", part.name, "'"),
              cat("rows ", to_text(part.rows), ", columns ", to_text(part.cols), ", scale_factor ",
                  text(part.scale_factor), ", lr_factor ", text(part.lr_factor), ", normuon_axis ",
                  static_cast<int32_t>(part.normuon_axis)));
  }
  table.add(who + ": master weights",
            owns_master(p)
                ? "owned"
                : name_of(p.master_kind == MasterKind::kAuto ? MasterKind::kNone : p.master_kind));
}

}  // namespace

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
  describe_options(table, s);
  table.add("number of groups", cat(s.groups.size()));
  table.add("number of parameters", cat(s.params.size()));
  for (size_t i = 0; i < s.groups.size(); ++i) describe_group(table, cat("group ", i), s.groups[i]);
  for (size_t i = 0; i < s.params.size(); ++i) {
    const ParamSettings& p = s.params[i];
    table.add(cat("name of param ", i), cat("'", p.name, "'"));
    describe_param(table, cat("param '", p.name, "'"), p);
  }
  return table;
}

}  // namespace muonrt
