#include "layout/strategies.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "layout/parse.hpp"

namespace muonrt {

namespace {

bool any_of(std::string_view name, std::initializer_list<std::string_view> known) {
  return std::find(known.begin(), known.end(), name) != known.end();
}

}  // namespace

Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all) {
  std::vector<std::vector<int32_t>> submeshes = all;
  std::sort(submeshes.begin(), submeshes.end());
  submeshes.erase(std::unique(submeshes.begin(), submeshes.end()), submeshes.end());
  MUONRT_REQUIRE(std::binary_search(submeshes.begin(), submeshes.end(), submesh.ranks()),
                 kInvalidArg, "lift: the submesh has the ranks ", submesh.ranks(),
                 ", but no rank has this submesh; pass the submeshes of all ranks, by rank");
  if (submeshes.size() == 1) return submesh;
  std::vector<int32_t> first_rank(all.size(), -1);  // the lowest rank whose submesh has the rank
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

std::vector<Placement> placements_from_names(const Mesh& mesh, int tp_dim, bool expert) {
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  int64_t model_cuts = 1;  // product of the tp and ep dims to the right that cut tensor dim 0
  for (int d = mesh.dims() - 1; d >= 0; --d) {
    const std::string& given = mesh.names()[static_cast<size_t>(d)];
    const int64_t size = mesh.shape()[static_cast<size_t>(d)];
    if (size == 1) continue;  // any name is valid
    std::string name = given;
    std::replace(name.begin(), name.end(), '.', '_');
    Placement p;
    if (any_of(name, {"fsdp", "dp_shard", "zero", "hsdp_shard", "dp_shard_cp", "efsdp"})) {
      p = {model_cuts > 1 ? PlacementKind::kStridedShard : PlacementKind::kShard, 0, model_cuts};
    } else if (name == "tp") {
      if (tp_dim >= 0) p = {PlacementKind::kShard, tp_dim, 1};
    } else if (name == "ep") {
      if (expert) p = {PlacementKind::kShard, 0, 1};
    } else {
      MUONRT_REQUIRE(name != "pp", kInvalidArg,
                     "mesh dimension 'pp': its ranks hold different parameters; "
                     "pass a mesh of one pipeline stage");
      MUONRT_REQUIRE(any_of(name, {"dp", "ddp", "dp_replicate", "hsdp_replicate", "cp", "sp"}),
                     kInvalidArg, "mesh dimension '", given,
                     "' has an unknown name (known: fsdp, dp_shard, zero, hsdp_shard, dp_shard_cp, "
                     "efsdp, tp, ep, dp, ddp, dp_replicate, hsdp_replicate, cp, sp); use one of "
                     "these names, or write the placements");
    }
    if ((name == "tp" || name == "ep") && p == Placement{PlacementKind::kShard, 0, 1})
      model_cuts *= size;
    out[static_cast<size_t>(d)] = p;
  }
  return out;
}

std::vector<Placement> parse_dtensor_placements(std::string_view text) {
  // Rewrites the text into the short form, which parse_placements then checks.
  std::string out;
  const std::string whole(text);
  const auto replace = [&](std::string from, const std::string& to) {
    for (size_t at = out.find(from); at != std::string::npos; at = out.find(from, at + to.size()))
      out.replace(at, from.size(), to);
  };
  for (const char c : text) {
    if (c != ' ') out += c;
  }
  const bool open = out.starts_with('(') || out.starts_with('[');
  if (open) {
    const char close = out.front() == '(' ? ')' : ']';
    MUONRT_REQUIRE(out.size() >= 2 && out.back() == close, kInvalidArg, "placements '", whole,
                   "': the closing '", close, "' is missing; write (Shard(dim=0), Replicate())");
    out = out.substr(1, out.size() - 2);
    if (out.ends_with(',')) out.pop_back();  // a tuple of one
  }
  replace("_StridedShard(", "SS(");
  replace("StridedShard(", "SS(");
  replace("Shard(", "S(");
  replace("Replicate()", "R");
  replace("Partial(sum)", "P");
  replace("P(sum)", "P");
  replace("_S(", "SS(");
  replace("Partial()", "P");
  replace("dim=", "");
  replace("split_factor=", "");
  replace("sf=", "");
  try {
    return parse_placements(out);
  } catch (const Error& e) {
    throw Error(e.status(), out == whole ? std::string(e.message())
                                         : cat("placements '", whole, "': ", e.message()));
  }
}

}  // namespace muonrt
