#include <map>
#include <numeric>

#include "binding.hpp"

namespace binding {
namespace {

int64_t size_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  return shape_text({ranks.begin(), ranks.end()});
}

/// The groups of one mesh dimension, and for each rank its group and its position in the group.
struct Groups {
  std::string name;
  std::vector<std::vector<int32_t>> groups;
  std::map<int32_t, std::pair<size_t, size_t>> places;
};

Groups groups_of(const std::string& name, const std::vector<std::vector<int32_t>>& given) {
  Groups out{name, {}, {}};
  for (const std::vector<int32_t>& ranks : given) {
    // Callers may pass the group of each rank, so the list may contain a group multiple times.
    if (std::find(out.groups.begin(), out.groups.end(), ranks) != out.groups.end()) continue;
    if (!out.groups.empty() && ranks.size() != out.groups[0].size())
      refuse(kInvalidArg, cat(name, ": the group ", ranks_text(ranks), " has ", ranks.size(),
                              " ranks, but ", ranks_text(out.groups[0]), " has ",
                              out.groups[0].size(), "; pass groups of one size"));
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto [at, added] = out.places.insert({ranks[i], {out.groups.size(), i}});
      if (!added)
        refuse(kInvalidArg, cat(name, ": rank ", ranks[i], " is in the group ", ranks_text(ranks),
                                at->second.first == out.groups.size()
                                    ? std::string(" twice")
                                    : cat(" and in ", ranks_text(out.groups[at->second.first])),
                                "; pass groups in which each rank occurs once"));
    }
    out.groups.push_back(ranks);
  }
  if (out.places.empty()) refuse(kInvalidArg, cat(name, ": there are no ranks; pass its groups"));
  return out;
}

/// Returns the mesh in which the ranks along each dimension form the groups with the dimension's
/// name.
Mesh from_groups(const nb::dict& given) {
  std::vector<Groups> dims;
  Mesh out;
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(nb::str(key));
    std::vector<std::vector<int32_t>> lists;
    if (!nb::try_cast(value, lists))
      refuse(kInvalidArg, cat(name, ": the groups are ", nb::repr(value).c_str(),
                              "; pass a list of groups, which are lists of ranks"));
    dims.push_back(groups_of(name, lists));
    const Groups& last = dims.back();
    for (const auto& [rank, place] : dims[0].places)
      if (last.places.count(rank) == 0)
        refuse(kInvalidArg, cat(name, ": no group has rank ", rank, ", but a group of ",
                                dims[0].name, " has; pass the groups of all ranks"));
    if (last.places.size() != dims[0].places.size())
      refuse(kInvalidArg,
             cat(name, ": the groups have ", last.places.size(), " ranks, but those of ",
                 dims[0].name, " have ", dims[0].places.size(), "; pass groups of the same ranks"));
    out.names.push_back(name);
    out.shape.push_back(static_cast<int64_t>(last.groups[0].size()));
  }
  if (dims.empty()) refuse(kInvalidArg, "there are no groups; pass those of a dimension");
  const int64_t size = size_of(out.shape);
  const auto ranks = static_cast<int64_t>(dims[0].places.size());
  if (size != ranks)
    refuse(kInvalidArg,
           cat("the groups form a mesh ", shape_text(out.shape), " of ", size, " ranks, but have ",
               ranks, " ranks; pass the groups of every dimension of one mesh"));
  out.ranks.assign(static_cast<size_t>(size), -1);
  const auto position = [&](int32_t rank) {
    int64_t at = 0;
    for (size_t d = 0; d < dims.size(); ++d)
      at = at * out.shape[d] + static_cast<int64_t>(dims[d].places.at(rank).second);
    return static_cast<size_t>(at);
  };
  for (const auto& [rank, place] : dims[0].places) {
    int32_t& at = out.ranks[position(rank)];
    if (at >= 0)
      refuse(kInvalidArg, cat("ranks ", at, " and ", rank,
                              " have the same place in each of their "
                              "groups; pass groups that form one mesh"));
    at = rank;
  }
  // The ranks of a group must have the same position in all other dimensions.
  for (size_t d = 0; d < dims.size(); ++d)
    for (const std::vector<int32_t>& group : dims[d].groups)
      for (const int32_t rank : group)
        for (size_t other = 0; other < dims.size(); ++other)
          if (other != d &&
              dims[other].places.at(rank).second != dims[other].places.at(group[0]).second)
            refuse(kInvalidArg,
                   cat(dims[d].name, ": ranks ", group[0], " and ", rank, " of the group ",
                       ranks_text(group), " have different places in their groups of ",
                       dims[other].name, "; pass groups that form one mesh"));
  return out;
}

/// Returns the submesh at position `index` of dimension `dim`, without this dimension.
Mesh select(const Mesh& mesh, nb::handle dim, int64_t index) {
  const auto d = static_cast<size_t>(mesh.dimension(dim));
  if (index < 0 || index >= mesh.shape[d])
    refuse(kInvalidArg, cat("index is ", index, ", but mesh ", shape_text(mesh.shape), " has size ",
                            mesh.shape[d], " there; pass 0 to ", mesh.shape[d] - 1));
  Mesh out = mesh;
  out.ranks.clear();
  const int64_t inner =
      size_of({mesh.shape.begin() + static_cast<int64_t>(d) + 1, mesh.shape.end()});
  for (int64_t at = 0; at < size_of(mesh.shape); ++at)
    if (at / inner % mesh.shape[d] == index)
      out.ranks.push_back(mesh.ranks.empty() ? static_cast<int32_t>(at)
                                             : mesh.ranks[static_cast<size_t>(at)]);
  if (mesh.shape.size() == 1) {
    out.shape = {1};
    return out;
  }
  out.shape.erase(out.shape.begin() + static_cast<int64_t>(d));
  if (!out.names.empty()) out.names.erase(out.names.begin() + static_cast<int64_t>(d));
  return out;
}

Mesh make_mesh(std::vector<int64_t> shape, std::vector<std::string> names,
               std::vector<int32_t> ranks) {
  const int64_t size = size_of(shape);
  if (!names.empty() && names.size() != shape.size())
    refuse(kInvalidArg, cat("there are ", names.size(), " names for mesh ", shape_text(shape),
                            "; pass one for each mesh dimension"));
  if (!ranks.empty() && static_cast<int64_t>(ranks.size()) != size)
    refuse(kInvalidArg, cat("there are ", ranks.size(), " ranks for mesh ", shape_text(shape),
                            "; pass ", size, " ranks"));
  return {std::move(shape), std::move(names), std::move(ranks)};
}

}  // namespace

int32_t Mesh::dimension(nb::handle name_or_index) const {
  if (nb::isinstance<nb::int_>(name_or_index)) {
    const auto index = nb::cast<int32_t>(name_or_index);
    if (index >= 0 && index < static_cast<int32_t>(shape.size())) return index;
  } else if (nb::isinstance<nb::str>(name_or_index)) {
    const auto name = nb::cast<std::string>(name_or_index);
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return static_cast<int32_t>(i);
  }
  refuse(kInvalidArg,
         cat("mesh ", shape_text(shape), " has no dimension ", nb::repr(name_or_index).c_str()));
}

std::vector<int32_t> Mesh::dimensions(nb::handle names_or_indices) const {
  if (nb::isinstance<nb::int_>(names_or_indices) || nb::isinstance<nb::str>(names_or_indices))
    return {dimension(names_or_indices)};
  std::vector<int32_t> out;
  for (nb::handle item : names_or_indices) out.push_back(dimension(item));
  return out;
}

void bind_mesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh", "A row-major array of ranks with one or several dimensions.")
      .def(
          "__init__",
          [](Mesh* self, std::vector<int64_t> shape, std::vector<std::string> names,
             std::vector<int32_t> ranks) {
            new (self) Mesh(make_mesh(std::move(shape), std::move(names), std::move(ranks)));
          },
          nb::arg("shape"), nb::arg("names") = std::vector<std::string>{},
          nb::arg("ranks") = std::vector<int32_t>{},
          nb::sig("def __init__(self, shape: collections.abc.Sequence[int], "
                  "names: collections.abc.Sequence[str] = [], "
                  "ranks: collections.abc.Sequence[int] = []) -> None"),
          "Creates a mesh.\n\n"
          ":param shape: the size of each dimension.\n"
          ":param names: the name of each dimension. By default the names are \"d0\", \"d1\"\n"
          "    and so on.\n"
          ":param ranks: the rank at each position of the array, in row-major order. By default\n"
          "    the ranks are 0, 1, 2 and so on.")
      .def_static(
          "from_groups", &from_groups, nb::arg("groups"),
          nb::sig("def from_groups(groups: collections.abc.Mapping[str, "
                  "collections.abc.Sequence[collections.abc.Sequence[int]]]) -> Mesh"),
          "Returns the mesh that is defined by groups of ranks, for example by process groups.\n\n"
          ":param groups: the name and the groups of each dimension, from the outermost\n"
          "    dimension to the innermost, for example\n"
          "    ``{\"fsdp\": [[0, 2], [1, 3]], \"tp\": [[0, 1], [2, 3]]}``. The groups of each\n"
          "    dimension must contain the same ranks. A list may contain a group several times,\n"
          "    for example once for each rank of the group.")
      .def("select", &select, nb::arg("dim"), nb::arg("index"),
           nb::sig("def select(self, dim: str | int, index: int) -> Mesh"),
           "Returns the submesh at position ``index`` of dimension ``dim``, for example the\n"
           "ranks of one pipeline stage. The submesh does not have the dimension ``dim``. If\n"
           "the mesh has only one dimension, the submesh contains one rank.")
      .def_ro("shape", &Mesh::shape)
      .def_ro("names", &Mesh::names)
      .def_ro("ranks", &Mesh::ranks)
      .def("__repr__", [](const Mesh& mesh) { return cat("Mesh(", shape_text(mesh.shape), ")"); });
}

}  // namespace binding
