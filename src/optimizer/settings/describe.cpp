#include "optimizer/settings/describe.hpp"

#include <algorithm>

#include "build_info.hpp"
#include "optimizer/methods/qk_clip.hpp"

namespace muonrt {

namespace {

/// Describes a mesh by its sizes that are larger than 1, and by its ranks. The hash of a layout
/// contains the same values. For a large mesh, listing the first ranks suffices, because different
/// submeshes differ in them.
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

/// Returns a visitor that adds an entry for each setting if `accepts` returns true for its row.
template <class Settings, class Accepts>
auto adds_entries(AgreementTable& table, const std::string& who, const Settings& s,
                  Accepts accepts) {
  return [&table, &who, &s, accepts](const auto& row) {
    if (!accepts(row)) return;
    if constexpr (requires { row.member; }) {
      table.add(cat(who, ": ", row.name), text_of(row, row.member(s)));
    } else {
      table.add(cat(who, ": ", row.name), text_of(row, s));
    }
  };
}

constexpr auto is_listed = [](const auto& row) {
  if constexpr (requires { row.member; }) return !row.has(kUnlisted);
  return true;
};

constexpr auto is_changeable = [](const auto& row) {
  if constexpr (requires { row.member; }) return !row.has(kFixed);
  return false;
};

void describe_param(AgreementTable& table, const std::string& who, const ParamSettings& p) {
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
  table.add(who + ": owner", p.owners.empty() ? cat(p.owner) : cat(p.owners));
  table.add(who + ": priority", cat(p.priority));
  table.add(who + ": view", cat(static_cast<int32_t>(p.view)));
  table.add(who + ": transposed", cat(static_cast<int32_t>(p.transposed)));
  table.add(who + ": lr_factor", cat(p.lr_factor));
  table.add(who + ": normuon_axis", cat(static_cast<int32_t>(p.normuon_axis)));
  table.add(who + ": qk_clip", describe(p.qk_clip));
  table.add(who + ": number of parts", cat(p.parts.size()));
  for (const PartSettings& part : p.parts) {
    table.add(cat(who, ": part '", part.name, "'"),
              cat("rows ", to_text(part.rows), ", columns ", to_text(part.cols), ", scale_factor ",
                  part.scale_factor, ", lr_factor ", part.lr_factor, ", normuon_axis ",
                  static_cast<int32_t>(part.normuon_axis)));
  }
  table.add(who + ": master weights",
            owns_master(p)
                ? "owned"
                : name_of(p.master_kind == MasterKind::kAuto ? MasterKind::kNone : p.master_kind));
}

}  // namespace

std::string text_of(const ComparedEntry& entry, const GroupSettings& g) {
  const std::string_view name = entry.name;
  if (name == "name") return cat("'", g.name, "'");
  if (name == "gram_restarts") return g.gram_restarts ? cat(*g.gram_restarts) : "searched";
  std::string out;  // kCustom
  for (const Coefficients& c : g.custom) out += cat("(", c.a, ", ", c.b, ", ", c.c, ") ");
  return out;
}

std::string text_of(const ComparedEntry& entry, const OptimizerSettings& s) {
  const std::string_view name = entry.name;
  if (name == "Gram form's dtype")
    return name_of(s.gram_iteration_dtype.value_or(s.iteration_dtype));
  if (name == "serial") return cat(s.serial);
  if (name == "machine") {
    const MachineProfile machine = machine_of(s);
    return cat("'", machine.name, "' with digest ", machine.hash());
  }
  const bool given =
      name == "distributed: assign" ? bool{s.assign_owner} : bool{s.exchange_callbacks};
  return given ? "given" : "none";
}

void describe_scalars(AgreementTable& table, const std::string& who, const GroupSettings& g) {
  visit_group_fields(adds_entries(table, who, g, is_changeable));
}

// Numbers are hashed by their bits, because two different numbers may have the same text.
void hash_scalars(Hash& hash, const GroupSettings& g) {
  visit_group_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      if (!is_changeable(row)) return;
      if constexpr (std::is_same_v<decltype(row.member(g)), const double&>)
        hash.value(row.member(g));
      else
        hash.bytes(text_of(row, row.member(g)));
    }
  });
}

AgreementTable make_agreement_table(const OptimizerSettings& s, const std::string& device) {
  AgreementTable table;
  table.add("muonrt version", build_info::kVersion);
  table.add("device", device);
  const std::string options = "options";
  visit_option_fields(adds_entries(table, options, s, is_listed));
  table.add("number of groups", cat(s.groups.size()));
  table.add("number of parameters", cat(s.params.size()));
  for (size_t i = 0; i < s.groups.size(); ++i) {
    const std::string who = cat("group ", i);
    visit_group_fields(adds_entries(table, who, s.groups[i], is_listed));
  }
  for (size_t i = 0; i < s.params.size(); ++i) {
    const ParamSettings& p = s.params[i];
    table.add(cat("name of param ", i), cat("'", p.name, "'"));
    describe_param(table, cat("param '", p.name, "'"), p);
  }
  return table;
}

}  // namespace muonrt
