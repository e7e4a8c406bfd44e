#include <numeric>

#include "binding.hpp"

namespace binding {
namespace {

int64_t size_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

LayoutView::LayoutView(const Layout& layout) {
  muonrt_mesh_init(&mesh_);
  for (const std::string& name : layout.mesh.names) names_.push_back(name.c_str());
  mesh_.ndim = static_cast<int32_t>(layout.mesh.shape.size());
  mesh_.shape = layout.mesh.shape.data();
  mesh_.names = names_.empty() ? nullptr : names_.data();
  mesh_.ranks = layout.mesh.ranks.empty() ? nullptr : layout.mesh.ranks.data();
  for (const Cut& cut : layout.cuts)
    cuts_.push_back({cut.mesh_dims.data(), static_cast<int32_t>(cut.mesh_dims.size()), cut.dim,
                     cut.split_factor, cut.unit});
  muonrt_layout_init(&layout_);
  layout_.mesh = &mesh_;
  layout_.reading = layout.reading;
  layout_.placements = layout.placements.empty() ? nullptr : layout.placements.data();
  layout_.flat_dims = layout.flat_dims.empty() ? nullptr : layout.flat_dims.data();
  layout_.n_flat_dims = static_cast<int32_t>(layout.flat_dims.size());
  layout_.cuts = cuts_.empty() ? nullptr : cuts_.data();
  layout_.n_cuts = static_cast<int32_t>(cuts_.size());
  layout_.kind = layout.kind;
  layout_.last_dim = layout.last_dim;
  layout_.last_dims = layout.last_dims.empty() ? nullptr : layout.last_dims.data();
  layout_.n_last_dims = static_cast<int32_t>(layout.last_dims.size());
  layout_.values = layout.values.empty() ? nullptr : layout.values.data();
  layout_.n_values = static_cast<int64_t>(layout.values.size());
}

int32_t Layout::world_or_mesh(std::optional<int32_t> world) const {
  if (world) return *world;
  int64_t size = size_of(mesh.shape);
  for (const int32_t rank : mesh.ranks) size = std::max<int64_t>(size, rank + 1);
  return static_cast<int32_t>(size);
}

std::vector<int64_t> Layout::local_shape(const std::vector<int64_t>& shape, int32_t rank,
                                         std::optional<int32_t> world) const {
  std::vector<int64_t> out(shape.size());
  check(muonrt_layout_get_local_shape(out.data(), LayoutView(*this).get(), world_or_mesh(world),
                                      static_cast<int32_t>(shape.size()), shape.data(), rank));
  return out;
}

Layout Layout::lift(const std::vector<std::vector<int32_t>>& submeshes) const {
  const int64_t size = size_of(mesh.shape);
  std::vector<int32_t> all;
  for (const auto& ranks : submeshes) {
    if (static_cast<int64_t>(ranks.size()) != size)
      refuse(kInvalidArg, cat("a submesh has ", ranks.size(), " ranks, but the mesh has shape ",
                              shape_text(mesh.shape), "; pass ", size, " ranks"));
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::vector<int32_t> ranks(submeshes.size());
  auto storage = muonrt::detail::filled(muonrt_mesh_storage_init_sized);
  storage.ranks = ranks.data();
  storage.capacity = static_cast<int32_t>(ranks.size());
  muonrt_mesh_t over;
  muonrt_layout_t lifted;
  std::vector<muonrt_placement_t> of_all(MUONRT_MAX_DIMS);
  check(muonrt_layout_lift(&lifted, &over, &storage, of_all.data(), LayoutView(*this).get(),
                           all.data(), static_cast<int32_t>(submeshes.size())));
  Layout out = *this;
  out.mesh = {{over.shape, over.shape + over.ndim}, {over.names, over.names + over.ndim}, {}};
  out.mesh.ranks.assign(over.ranks, over.ranks + size_of(out.mesh.shape));
  of_all.resize(static_cast<size_t>(over.ndim));
  if (!placements.empty()) out.placements = std::move(of_all);
  return out;
}

namespace {

std::vector<std::pair<int64_t, int64_t>> runs(const Layout& layout,
                                              const std::vector<int64_t>& shape, int32_t rank,
                                              int32_t dim, std::optional<int32_t> world) {
  const LayoutView view(layout);
  const int32_t ranks = layout.world_or_mesh(world);
  const auto ndim = static_cast<int32_t>(shape.size());
  int64_t count = 0;
  check(
      muonrt_layout_get_runs(nullptr, 0, &count, view.get(), ranks, ndim, shape.data(), rank, dim));
  std::vector<muonrt_run_t> found(static_cast<size_t>(count));
  check(muonrt_layout_get_runs(found.data(), count, &count, view.get(), ranks, ndim, shape.data(),
                               rank, dim));
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const muonrt_run_t& run : found) out.emplace_back(run.begin, run.end);
  return out;
}

/// Returns the text to pass to muonrt_placements_parse(). If `placements` is a text, returns it
/// unchanged; otherwise joins its items, as texts or by their repr(), with commas.
std::string placements_text(nb::handle placements) {
  if (nb::isinstance<nb::str>(placements)) return nb::cast<std::string>(placements);
  std::string out;
  for (nb::handle placement : placements) {
    if (!out.empty()) out += ",";
    out += nb::isinstance<nb::str>(placement) ? nb::cast<std::string>(placement)
                                              : nb::repr(placement).c_str();
  }
  return out;
}

std::vector<muonrt_placement_t> parse(const std::string& text) {
  std::vector<muonrt_placement_t> out(MUONRT_MAX_DIMS);
  int32_t count = 0;
  check(muonrt_placements_parse(out.data(), MUONRT_MAX_DIMS, &count, text.c_str()));
  out.resize(static_cast<size_t>(std::min(count, MUONRT_MAX_DIMS)));
  return out;
}

Cut cut_of(const Mesh& mesh, nb::handle cut) {
  const nb::tuple numbers = nb::cast<nb::tuple>(cut);
  if (numbers.size() < 2 || numbers.size() > 4)
    refuse(kInvalidArg, cat("a cut has ", numbers.size(),
                            " values; pass (mesh dimensions, dim[, split_factor[, unit]])"));
  return {mesh.dimensions(numbers[0]), nb::cast<int32_t>(numbers[1]),
          numbers.size() > 2 ? nb::cast<int64_t>(numbers[2]) : 1,
          numbers.size() > 3 ? nb::cast<int64_t>(numbers[3]) : 1};
}

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

/// Sets the part of a layout that is applied after the cuts.
void set_last(Layout& layout, const std::optional<Pairs>& flat,
              const std::optional<std::vector<int64_t>>& row_bounds,
              const std::optional<int64_t>& owner) {
  if (flat.has_value() + row_bounds.has_value() + owner.has_value() > 1)
    refuse(kInvalidArg, "more than one of flat, row_bounds and owner is set; set at most one");
  if (flat) {
    layout.kind = MUONRT_LAYOUT_FLAT;
    for (const auto& [begin, end] : *flat) layout.values.insert(layout.values.end(), {begin, end});
  } else if (row_bounds) {
    layout.kind = MUONRT_LAYOUT_ROW_BOUNDS;
    layout.values = *row_bounds;
  } else if (owner) {
    layout.kind = MUONRT_LAYOUT_OWNER;
    layout.values = {*owner};
  }
}

Layout make(Mesh mesh, nb::object placements, const std::string& reading, nb::object flat_dims,
            const std::vector<nb::object>& cuts, std::optional<Pairs> flat,
            std::optional<std::vector<int64_t>> row_bounds, std::optional<int64_t> owner,
            int32_t dim, nb::object over) {
  Layout out;
  out.mesh = std::move(mesh);
  if (!placements.is_none()) {
    out.placements = parse(placements_text(placements));
    if (out.placements.size() != out.mesh.shape.size())
      refuse(kInvalidArg, cat("there are ", out.placements.size(), " placements for mesh ",
                              shape_text(out.mesh.shape), "; pass one for each mesh dimension"));
  }
  if (reading != "literal" && reading != "ordered")
    refuse(kInvalidArg, cat("reading is '", reading, "'; use 'literal' or 'ordered'"));
  out.reading = reading == "ordered" ? MUONRT_READING_ORDERED : MUONRT_READING_LITERAL;
  if (!flat_dims.is_none()) out.flat_dims = out.mesh.dimensions(flat_dims);
  if (!over.is_none()) out.last_dims = out.mesh.dimensions(over);
  for (const nb::object& cut : cuts) out.cuts.push_back(cut_of(out.mesh, cut));
  set_last(out, flat, row_bounds, owner);
  out.last_dim = dim;
  return out;
}

Layout for_tensor(const Mesh& mesh, const std::vector<int64_t>& shape, const std::string& name,
                  bool expert, bool transposed) {
  Layout out;
  out.mesh = mesh;
  const LayoutView view(out);
  out.placements.resize(mesh.shape.size());
  check(muonrt_placements_for_tensor(
      out.placements.data(), view.get()->mesh, out.world_or_mesh(std::nullopt), name.c_str(),
      static_cast<int32_t>(shape.size()), shape.data(), expert, transposed));
  out.reading = MUONRT_READING_ORDERED;
  return out;
}

Layout from_names(const Mesh& mesh, int32_t tp_dim, bool expert, const std::string& reading,
                  nb::object flat_dims) {
  std::vector<muonrt_placement_t> placements(mesh.shape.size());
  Layout out = make(mesh, nb::none(), reading, flat_dims, {}, {}, {}, {}, 0, nb::none());
  const LayoutView view(out);
  check(muonrt_placements_from_names(placements.data(), view.get()->mesh,
                                     out.world_or_mesh(std::nullopt), tp_dim, expert));
  out.placements = std::move(placements);
  return out;
}

/// Returns the placements in the short notation that the constructor accepts.
std::vector<std::string> placements_of(const Layout& layout) {
  std::vector<std::string> out;
  for (const muonrt_placement_t& p : layout.placements)
    out.push_back(p.kind == MUONRT_PLACEMENT_SHARD ? cat("S(", p.dim, ")")
                  : p.kind == MUONRT_PLACEMENT_STRIDED_SHARD
                      ? cat("SS(", p.dim, ",", p.split_factor, ")")
                  : p.kind == MUONRT_PLACEMENT_PARTIAL ? "P"
                                                       : "R");
  return out;
}

}  // namespace

void bind_layout(nb::module_& module) {
  bind_mesh(module);
  nb::class_<Layout>(
      module, "Layout",
      "How a tensor is distributed over a mesh of ranks; see muonrt_layout_t. If only a mesh is\n"
      "given, the tensor is replicated.")
      .def(
          "__init__",
          [](Layout* self, const Mesh& mesh, nb::object placements, const std::string& reading,
             nb::object flat_dims, const std::vector<nb::object>& cuts, std::optional<Pairs> flat,
             std::optional<std::vector<int64_t>> row_bounds, std::optional<int64_t> owner,
             int32_t dim, nb::object over) {
            new (self) Layout(make(mesh, placements, reading, flat_dims, cuts, std::move(flat),
                                   std::move(row_bounds), owner, dim, over));
          },
          nb::arg("mesh"), nb::arg("placements").none() = nb::none(), nb::kw_only(),
          nb::arg("reading") = "literal", nb::arg("flat_dims").none() = nb::none(),
          nb::arg("cuts") = std::vector<nb::object>{}, nb::arg("flat") = nb::none(),
          nb::arg("row_bounds") = nb::none(), nb::arg("owner") = nb::none(), nb::arg("dim") = 0,
          nb::arg("over").none() = nb::none(),
          nb::sig(
              "def __init__(self, mesh: Mesh, "
              "placements: str | collections.abc.Sequence[typing.Any] | None = None, *, "
              "reading: str = 'literal', "
              "flat_dims: str | int | collections.abc.Sequence[str | int] | None = None, "
              "cuts: collections.abc.Sequence[tuple] = [], "
              "flat: collections.abc.Sequence[tuple[int, int]] | None = None, "
              "row_bounds: collections.abc.Sequence[int] | None = None, owner: int | None = None, "
              "dim: int = 0, "
              "over: str | int | collections.abc.Sequence[str | int] | None = None) -> None"),
          "Creates a layout from placements or cuts, and optionally from one of flat, row_bounds\n"
          "and owner.\n\n"
          ":param placements: one placement for each mesh dimension. Pass the placements of a\n"
          "    DTensor, the text that they print, or the short form \"S(0),R\".\n"
          ":param reading: the order in which several placements shard the same tensor\n"
          "    dimension. Use \"ordered\" for tensors that FSDP2 has sharded after tensor or\n"
          "    expert parallelism, and \"literal\" for others; see muonrt_reading_t.\n"
          ":param flat_dims: names or indices of mesh dimensions over which FSDP2 shards as if\n"
          "    they were a single dimension.\n"
          ":param cuts: cuts as an alternative to placements, in the order in which they are\n"
          "    applied. Each cut is a tuple (mesh dimensions, dim[, split_factor[, unit]]); see\n"
          "    muonrt_cut_t.\n"
          ":param flat: for each shard, a range (begin, end) of elements. The ranges divide the\n"
          "    local tensor that remains after the cuts.\n"
          ":param row_bounds: the bounds of the shards along dim, one more than there are\n"
          "    shards. They divide the local tensor that remains after the cuts.\n"
          ":param owner: index of the only shard that holds the local tensor that remains after\n"
          "    the cuts. Set at most one of flat, row_bounds and owner.\n"
          ":param dim: the tensor dimension to which row_bounds apply.\n"
          ":param over: the mesh dimensions to which flat, row_bounds or owner apply. None\n"
          "    selects all mesh dimensions that no cut uses and that are not partial.")
      .def_static(
          "from_names", &from_names, nb::arg("mesh"), nb::arg("tp_dim") = -1, nb::kw_only(),
          nb::arg("expert") = false, nb::arg("reading") = "ordered",
          nb::arg("flat_dims").none() = nb::none(),
          nb::sig("def from_names(mesh: Mesh, tp_dim: int = -1, *, expert: bool = False, "
                  "reading: str = 'ordered', flat_dims: "
                  "str | int | collections.abc.Sequence[str | int] | None = None) "
                  "-> Layout"),
          "Returns a layout that follows from the names of the mesh dimensions, such as\n"
          "\"fsdp\", \"tp\", \"ep\" and \"dp\"; see muonrt_placements_from_names().\n\n"
          ":param tp_dim: the tensor dimension that \"tp\" shards. With -1, the tensor is\n"
          "    replicated over \"tp\".\n"
          ":param expert: True if the tensor is a stack of experts, which \"ep\" shards.\n"
          ":param reading: the same as in the constructor. \"ordered\" describes tensors of\n"
          "    FSDP2.\n"
          ":param flat_dims: the same as in the constructor.")
      .def_ro("mesh", &Layout::mesh)
      .def_prop_ro("placements", &placements_of,
                   "The placements in their short form, such as \"S(0)\", \"SS(0,2)\", \"R\" or\n"
                   "\"P\".")
      .def("local_shape", &Layout::local_shape, nb::arg("shape"), nb::arg("rank"),
           nb::arg("world") = nb::none(),
           nb::sig("def local_shape(self, shape: collections.abc.Sequence[int], rank: int, "
                   "world: int | None = None) -> list[int]"),
           "Returns the shape of the shard that a rank holds if the whole tensor has the shape\n"
           "``shape``.\n\n"
           ":param world: number of ranks of the communicator. None means the number of ranks\n"
           "    that the mesh needs.")
      .def("lift", &Layout::lift, nb::arg("submeshes"),
           nb::sig("def lift(self, submeshes: "
                   "collections.abc.Sequence[collections.abc.Sequence[int]]) -> Layout"),
           "Returns a layout over all ranks. Use this method if the layout describes a tensor\n"
           "on this rank's submesh, and other ranks have other submeshes.\n\n"
           "The new mesh has one more dimension than the submesh. Its last dimension is named\n"
           "\"submeshes\", and the tensor is replicated over this dimension. If all ranks have\n"
           "the same submesh, the new mesh is that submesh.\n\n"
           ":param submeshes: for each rank, the list of the ranks of its submesh, in row-major\n"
           "    order.")
      .def_static(
          "for_tensor", &for_tensor, nb::arg("mesh"), nb::arg("shape"), nb::arg("name") = "",
          nb::arg("expert") = false, nb::arg("transposed") = false,
          nb::sig("def for_tensor(mesh: Mesh, shape: collections.abc.Sequence[int], "
                  "name: str = '', expert: bool = False, transposed: bool = False) -> Layout"),
          "Returns the layout that trainers usually choose for a parameter with this name and\n"
          "shape. It follows from the names of the mesh dimensions; see\n"
          "muonrt_placements_for_tensor().")
      .def("runs", &runs, nb::arg("shape"), nb::arg("rank"), nb::arg("dim"),
           nb::arg("world") = nb::none(),
           nb::sig("def runs(self, shape: collections.abc.Sequence[int], rank: int, dim: int, "
                   "world: int | None = None) -> list[tuple[int, int]]"),
           "Returns the indices along dimension ``dim`` of the whole tensor that a rank holds,\n"
           "as a list of ranges (begin, end) in ascending order.\n\n"
           ":param world: number of ranks of the communicator. None means the number of ranks\n"
           "    that the mesh needs.");
}

}  // namespace binding
