#include "layout/strategies.hpp"

#include <algorithm>

#include "base/edits.hpp"
#include "base/error.hpp"

namespace muonrt {

namespace {

constexpr std::pair<std::string_view, MeshUse> kUses[] = {
    {"fsdp", MeshUse::kShard},
    {"dp_shard", MeshUse::kShard},
    {"zero", MeshUse::kShard},
    {"hsdp_shard", MeshUse::kShard},
    {"shard", MeshUse::kShard},
    {"dp_shard_cp", MeshUse::kShard},
    {"efsdp", MeshUse::kShard},
    {"tp", MeshUse::kTensor},
    {"ep", MeshUse::kExpert},
    {"dp", MeshUse::kReplicate},
    {"ddp", MeshUse::kReplicate},
    {"dp_replicate", MeshUse::kReplicate},
    {"hsdp_replicate", MeshUse::kReplicate},
    {"replicate", MeshUse::kReplicate},
    {"cp", MeshUse::kReplicate},
    {"sp", MeshUse::kReplicate},
};

}  // namespace

Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all) {
  std::vector<std::vector<int32_t>> submeshes = all;
  std::sort(submeshes.begin(), submeshes.end());
  submeshes.erase(std::unique(submeshes.begin(), submeshes.end()), submeshes.end());
  MUONRT_REQUIRE(std::binary_search(submeshes.begin(), submeshes.end(), submesh.ranks()),
                 kInvalidArg, "lift: the submesh has the ranks ", submesh.ranks(),
                 ", but no rank has this submesh; pass the submeshes of all ranks, by rank");
  if (submeshes.size() == 1) return submesh;
  // For each rank, the lowest rank whose submesh contains it.
  std::vector<int32_t> first_rank(all.size(), -1);
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(std::ssize(all[r]) == submesh.size(), kInvalidArg, "lift: the submesh of rank ",
                   r, " has ", all[r].size(), " ranks, but another one has ", submesh.size(),
                   "; pass submeshes of one shape");
    MUONRT_REQUIRE(std::find(all[r].begin(), all[r].end(), static_cast<int32_t>(r)) != all[r].end(),
                   kInvalidArg, "lift: rank ", r, " is not in its own submesh ", all[r],
                   "; pass the submeshes of all ranks, by rank");
    for (const int32_t member : all[r]) {
      MUONRT_REQUIRE(member >= 0 && member < std::ssize(all), kInvalidArg,
                     "lift: the submesh of rank ", r, " has rank ", member,
                     ", but the ranks are 0 to ", all.size() - 1,
                     "; pass ranks of the communicator");
      int32_t& seen = first_rank[static_cast<size_t>(member)];
      if (seen < 0) seen = static_cast<int32_t>(r);
      const auto& other = all[static_cast<size_t>(seen)];
      MUONRT_REQUIRE(other == all[r], kInvalidArg, "lift: rank ", member, " is in the submesh ",
                     other, " of rank ", seen, " and in ", all[r], " of rank ", r,
                     "; pass submeshes that are equal or disjoint");
    }
  }
  std::vector<int64_t> shape = submesh.shape();
  std::vector<std::string> names = submesh.names();
  shape.push_back(std::ssize(submeshes));
  names.emplace_back("submeshes");
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < submesh.ranks().size(); ++i) {
    for (const auto& ranks_of_one : submeshes) ranks.push_back(ranks_of_one[i]);
  }
  return Mesh(shape, names, ranks);
}

MeshUse mesh_use(const Mesh& mesh, int dim) {
  const std::string& given = mesh.names()[static_cast<size_t>(dim)];
  if (mesh.shape()[static_cast<size_t>(dim)] == 1) return MeshUse::kReplicate;
  std::string name = given;
  std::replace(name.begin(), name.end(), '.', '_');
  MUONRT_REQUIRE(name != "pp", kInvalidArg,
                 "mesh dimension 'pp': its ranks hold different parameters; pass a mesh of one "
                 "pipeline stage");
  std::string known;
  for (const auto& [of, use] : kUses) {
    if (of == name) return use;
    known += cat(known.empty() ? "" : ", ", of);
  }
  const auto nearest = std::min_element(std::begin(kUses), std::end(kUses), [&](auto& a, auto& b) {
    return edits_between(name, a.first) < edits_between(name, b.first);
  });
  throw Error(kInvalidArg, cat("mesh dimension '", given, "' has an unknown name, the nearest is '",
                               nearest->first, "' (known: ", known,
                               "); use one of these names, or write the placements"));
}

std::vector<Placement> placements_from_names(const Mesh& mesh, int tp_dim, bool expert) {
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  // Product of the sizes of those tp and ep dims further right that cut tensor dim 0.
  int64_t model_cuts = 1;
  for (int d = mesh.dims() - 1; d >= 0; --d) {
    const MeshUse use = mesh_use(mesh, d);
    Placement& p = out[static_cast<size_t>(d)];
    if (use == MeshUse::kShard) {
      p = {model_cuts > 1 ? PlacementKind::kStridedShard : PlacementKind::kShard, 0, model_cuts};
      continue;
    }
    if (use == MeshUse::kTensor && tp_dim >= 0) p = {PlacementKind::kShard, tp_dim, 1};
    if (use == MeshUse::kExpert && expert) p = {PlacementKind::kShard, 0, 1};
    if (p == Placement{PlacementKind::kShard, 0, 1})
      model_cuts *= mesh.shape()[static_cast<size_t>(d)];
  }
  return out;
}

namespace {

// Trainers with tensor parallelism shard some weights over the outputs of their module, and others
// over its inputs. The last part of the module's name selects one of the two. All other weights are
// replicated.
constexpr std::string_view kOutputs[] = {
    "q_proj",       "k_proj", "v_proj",   "qkv_proj",  "c_attn",       "q_b_proj",
    "kv_b_proj",    "w1",     "o_a_proj", "gate_proj", "up_proj",      "w3",
    "gate_up_proj", "c_fc",   "fc1",      "lm_head",   "embed_tokens", "wte"};
constexpr std::string_view kInputs[] = {"o_proj", "c_proj", "o_b_proj", "down_proj", "w2", "fc2"};

/// Returns the tensor dim that tp cuts, or -1 if tp does not cut the tensor.
int tp_dim_of(std::string_view name, int dims, bool expert, bool transposed) {
  if (dims < (expert ? 3 : 2)) return -1;
  const int rows = expert ? 1 : 0, columns = rows + 1;
  if (name.empty()) return columns;
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  name.remove_prefix(name.rfind('.') + 1);  // also correct without a dot, because npos + 1 is 0
  const auto has = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  if (has(kOutputs)) return transposed ? columns : rows;
  if (has(kInputs)) return transposed ? rows : columns;
  return -1;
}

bool cuts(const Placement& p, int dim) {
  return (p.kind == PlacementKind::kShard || p.kind == PlacementKind::kStridedShard) &&
         p.tensor_dim == dim;
}

}  // namespace

std::vector<Placement> placements_for_tensor(const Mesh& mesh, std::string_view name,
                                             const std::vector<int64_t>& shape, bool expert,
                                             bool transposed) {
  const int tp = tp_dim_of(name, static_cast<int>(shape.size()), expert, transposed);
  std::vector<Placement> out = placements_from_names(mesh, tp, expert);
  // The number of shares into which the experts are divided, and the product of the sizes of the
  // dims further right that cut the experts' rows.
  int64_t shares = 1, model_cuts = 1;
  for (int d = 0; d < mesh.dims(); ++d)
    if (cuts(out[static_cast<size_t>(d)], 0)) shares *= mesh.shape()[static_cast<size_t>(d)];
  for (int d = mesh.dims() - 1; d >= 0; --d) {
    const auto at = static_cast<size_t>(d);
    if (mesh.names()[at] == "ddp" && mesh.shape()[at] > 1)
      out[at] = {PlacementKind::kPartial, 0, 1};
    if (shape.empty() && cuts(out[at], 0)) out[at] = {};
    if (!expert || shape.empty() || shares <= shape[0]) continue;
    if (cuts(out[at], 1)) model_cuts *= mesh.shape()[at];
    if (mesh_use(mesh, d) == MeshUse::kShard)
      out[at] = {model_cuts > 1 ? PlacementKind::kStridedShard : PlacementKind::kShard, 1,
                 model_cuts};
  }
  return out;
}

}  // namespace muonrt
