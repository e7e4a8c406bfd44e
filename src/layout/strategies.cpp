#include "layout/strategies.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "layout/parse.hpp"

namespace muonrt {

namespace {

bool any_of(std::string_view name, std::initializer_list<std::string_view> known) {
  return std::find(known.begin(), known.end(), name) != known.end();
}

/// Index of `rank` in its group on `dim`. Errors: as mesh_from_groups.
int64_t index_in_group(const std::vector<std::string>& names, const std::vector<GroupRanks>& all,
                       size_t dim, int32_t rank) {
  const std::vector<int32_t>& group = all[static_cast<size_t>(rank)][dim];
  const auto at = std::find(group.begin(), group.end(), rank);
  MUONRT_REQUIRE(at != group.end(), kInvalidArg, "groups: rank ", rank, " is not in its own ",
                 names[dim], " group ", group, "; give every rank the group it belongs to");
  for (const int32_t member : group) {
    MUONRT_REQUIRE(member >= 0 && member < static_cast<int32_t>(all.size()), kInvalidArg,
                   "groups: the ", names[dim], " group of rank ", rank, " holds rank ", member,
                   " (the communicator has 0 to ", all.size() - 1, "); use its ranks");
    const auto& theirs = all[static_cast<size_t>(member)][dim];
    MUONRT_REQUIRE(theirs == group, kInvalidArg, "groups: rank ", rank, " gives ", group,
                   " as its ", names[dim], " group, and rank ", member, ", a member, gives ",
                   theirs, "; they must be equal");
  }
  return at - group.begin();
}

}  // namespace

Mesh mesh_from_sizes(const std::vector<std::pair<std::string, int64_t>>& sizes, int64_t world) {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  int64_t product = 1;
  bool fits = true;  // into 63 bits
  std::string text;
  for (const auto& [name, size] : sizes) {
    MUONRT_REQUIRE(size >= 1, kInvalidArg, "process groups: size of ", name, " is ", size,
                   " (1 where it is not used); correct it");
    fits = fits && !__builtin_mul_overflow(product, size, &product);
    text += cat(text.empty() ? "" : " x ", name, " ", size);
    if (size == 1) continue;
    shape.push_back(size);
    names.push_back(name);
  }
  MUONRT_REQUIRE(fits && product == world, kInvalidArg, "process groups: ", text, " is ",
                 fits ? cat(product) : "more than 2^63", " ranks, and the communicator has ", world,
                 "; the sizes multiply to the ranks");
  return Mesh(shape, names);
}

Mesh mesh_from_groups(const std::vector<std::string>& names, const std::vector<GroupRanks>& all) {
  // Coordinates of every rank first; then its place in the array.
  const auto world = static_cast<int64_t>(all.size());
  std::vector<std::string> used;
  std::vector<int64_t> shape;
  std::vector<size_t> dims;
  for (size_t d = 0; d < names.size(); ++d) {
    const size_t size = all.front()[d].size();
    for (size_t r = 0; r < all.size(); ++r) {
      MUONRT_REQUIRE(all[r][d].size() == size, kInvalidArg, "groups: the ", names[d],
                     " group of rank ", r, " has ", all[r][d].size(), " ranks, that of rank 0 has ",
                     size, "; a mesh has equal groups");
    }
    if (size == 0) continue;
    used.push_back(names[d]);
    shape.push_back(static_cast<int64_t>(size));
    dims.push_back(d);
  }
  int64_t product = 1;
  for (const int64_t n : shape) product = checked_mul(product, n);
  MUONRT_REQUIRE(product == world, kInvalidArg, "groups: ", used, " of sizes ", shape, " span ",
                 product, " ranks, and the communicator has ", world,
                 product < world ? "; a group is missing (pipeline stages need pp)"
                                 : "; two overlap (give experts a mesh of their own)");
  std::vector<int32_t> ranks(all.size(), -1);
  for (int32_t r = 0; r < world; ++r) {
    int64_t position = 0;
    for (size_t i = 0; i < dims.size(); ++i) {
      position = position * shape[i] + index_in_group(names, all, dims[i], r);
    }
    int32_t& at = ranks[static_cast<size_t>(position)];
    MUONRT_REQUIRE(at < 0, kInvalidArg, "groups: ranks ", at, " and ", r,
                   " have the same place in every group; two groups overlap, or one is missing");
    at = r;
  }
  const Mesh mesh(shape, used, ranks);
  // The lines of the array are the groups.
  for (size_t i = 0; i < dims.size(); ++i) {
    for (int32_t r = 0; r < world; ++r) {
      auto coords = *mesh.coords(r);
      std::vector<int32_t> line;
      for (int64_t c = 0; c < shape[i]; ++c) {
        coords[i] = c;
        line.push_back(mesh.rank_at(coords));
      }
      const auto& group = all[static_cast<size_t>(r)][dims[i]];
      MUONRT_REQUIRE(line == group, kInvalidArg, "groups: the ", used[i], " group of rank ", r,
                     " is ", group, ", but the other groups make it ", line,
                     "; they are no lines of one array");
    }
  }
  return mesh;
}

Mesh select(const Mesh& mesh, int dim, int64_t index) {
  MUONRT_REQUIRE(dim >= 0 && dim < mesh.dims(), kInvalidArg, "mesh: dimension ", dim, " of ",
                 mesh.dims(), "; correct it");
  const auto at = static_cast<size_t>(dim);
  MUONRT_REQUIRE(index >= 0 && index < mesh.shape()[at], kInvalidArg, "mesh: index ", index, " on ",
                 mesh.names()[at], " (0 to ", mesh.shape()[at] - 1, "); correct it");
  std::vector<int64_t> shape = mesh.shape();
  std::vector<std::string> names = mesh.names();
  shape.erase(shape.begin() + dim);
  names.erase(names.begin() + dim);
  std::vector<int32_t> ranks;
  for (int64_t p = 0; p < mesh.size(); ++p) {
    if (mesh.coord(p, dim) == index) ranks.push_back(mesh.ranks()[static_cast<size_t>(p)]);
  }
  return Mesh(shape, names, ranks);
}

Mesh lift(const Mesh& submesh, const std::vector<std::vector<int32_t>>& all) {
  std::vector<std::vector<int32_t>> lines = all;
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  MUONRT_REQUIRE(std::binary_search(lines.begin(), lines.end(), submesh.ranks()), kInvalidArg,
                 "lift: the submesh has ranks ", submesh.ranks(),
                 ", which is no rank's; pass the submeshes of all ranks, by rank");
  if (lines.size() == 1) return submesh;
  std::vector<int32_t> holder(all.size(), -1);  // the lowest rank whose submesh holds it
  for (size_t r = 0; r < all.size(); ++r) {
    MUONRT_REQUIRE(std::ssize(all[r]) == submesh.size(), kInvalidArg, "lift: the submesh of rank ",
                   r, " has ", all[r].size(), " ranks, another one ", submesh.size(),
                   "; they are of one shape");
    MUONRT_REQUIRE(std::find(all[r].begin(), all[r].end(), static_cast<int32_t>(r)) != all[r].end(),
                   kInvalidArg, "lift: rank ", r, " is not in its own submesh, ", all[r],
                   "; pass the submeshes of all ranks, by rank");
    for (const int32_t member : all[r]) {
      MUONRT_REQUIRE(member >= 0 && member < std::ssize(all), kInvalidArg,
                     "lift: the submesh of rank ", r, " holds rank ", member,
                     " (the world has 0 to ", all.size() - 1, "); use its ranks");
      int32_t& seen = holder[static_cast<size_t>(member)];
      if (seen < 0) seen = static_cast<int32_t>(r);
      const auto& other = all[static_cast<size_t>(seen)];
      MUONRT_REQUIRE(other == all[r], kInvalidArg, "lift: rank ", member, " is in the submesh ",
                     other, " of rank ", seen, " and in ", all[r], " of rank ", r,
                     "; submeshes are lines of one mesh");
    }
  }
  std::vector<int64_t> shape = submesh.shape();
  std::vector<std::string> names = submesh.names();
  shape.push_back(std::ssize(lines));
  names.emplace_back("lines");
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < submesh.ranks().size(); ++i) {
    for (const auto& line : lines) ranks.push_back(line[i]);
  }
  return Mesh(shape, names, ranks);
}

std::vector<Placement> placements_by_name(const Mesh& mesh, int tp_dim, bool expert) {
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  int64_t model_cuts = 1;  // of tensor dim 0, by the mesh dims right of this one
  for (int d = mesh.dims() - 1; d >= 0; --d) {
    const std::string& given = mesh.names()[static_cast<size_t>(d)];
    const int64_t size = mesh.shape()[static_cast<size_t>(d)];
    if (size == 1) continue;  // whatever it is called
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
                     "select the parameter's stage first");
      MUONRT_REQUIRE(any_of(name, {"dp", "ddp", "dp_replicate", "hsdp_replicate", "cp", "sp"}),
                     kInvalidArg, "mesh dimension '", given,
                     "' has no customary meaning (known are fsdp, dp_shard, zero, hsdp_shard, "
                     "dp_shard_cp, efsdp, tp, ep, dp, ddp, dp_replicate, hsdp_replicate, cp, sp); "
                     "write the placements");
    }
    if ((name == "tp" || name == "ep") && p == Placement{PlacementKind::kShard, 0, 1})
      model_cuts *= size;
    out[static_cast<size_t>(d)] = p;
  }
  return out;
}

std::vector<Placement> parse_dtensor_placements(std::string_view text) {
  // Into the short form, piece by piece; parse_placements checks the rest.
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
                   "': no '", close, "' at the end; write (Shard(dim=0), Replicate())");
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
