#include "api/read_layout.hpp"

#include <algorithm>

#include "api/structs.hpp"

namespace muonrt::api {

namespace {

/// Calls `read`, and prepends `who` to the messages of its errors.
template <class Read>
auto named(const std::string& who, Read read) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(e.status(), cat(who, ": ", e.message()));
  }
}

std::vector<Placement> read_placements(const muonrt_placement_t* given, int count,
                                       const std::string& who) {
  std::vector<Placement> out;
  for (int i = 0; i < count; ++i) {
    const muonrt_placement_t& p = given[i];
    MUONRT_REQUIRE(p.kind >= MUONRT_PLACEMENT_REPLICATE && p.kind <= MUONRT_PLACEMENT_PARTIAL,
                   kInvalidArg, who, ": placement ", i, " has kind ", p.kind,
                   ", but must be 0 (replicate), 1 (shard), 2 (strided shard) or 3 (partial); use "
                   "one of these");
    const auto kind = static_cast<PlacementKind>(p.kind);
    const bool strided = kind == PlacementKind::kStridedShard;
    MUONRT_REQUIRE(strided ? p.split_factor >= 1 : (p.split_factor == 0 || p.split_factor == 1),
                   kInvalidArg, who, ": placement ", i, " has split_factor ", p.split_factor,
                   strided ? ", but must be 1 or more" : ", but only a strided shard has one",
                   strided ? "; set it to the number of groups" : "; set it to 0 or 1");
    out.push_back({kind, p.dim, strided ? p.split_factor : 1});
  }
  return out;
}

std::vector<Cut> read_cuts(const muonrt_layout_t& given, int mesh_dims, const std::string& who) {
  MUONRT_REQUIRE(given.n_cuts >= 0 && given.n_cuts <= 64 && (given.cuts || given.n_cuts == 0),
                 kInvalidArg, who, ": n_cuts is ", given.n_cuts,
                 ", but must be between 0 and 64, with `cuts` not NULL; pass the number of cuts");
  std::vector<Cut> out;
  for (int i = 0; i < given.n_cuts; ++i) {
    const muonrt_cut_t& c = given.cuts[i];
    MUONRT_REQUIRE(c.mesh_dims && c.n_mesh_dims >= 1 && c.n_mesh_dims <= mesh_dims, kInvalidArg,
                   who, ": cut ", i, " names ", c.n_mesh_dims,
                   " mesh dimensions, but the mesh has ", mesh_dims, "; name 1 to ", mesh_dims);
    out.push_back({{c.mesh_dims, c.mesh_dims + c.n_mesh_dims}, c.dim, c.split_factor, c.unit});
  }
  return out;
}

// Returns the mesh dimensions for the last step of the layout: `last_dims` if it is not empty,
// otherwise all mesh dimensions that are not partial and that no cut uses.
std::vector<int> read_last_dims(const muonrt_layout_t& l, const Mesh& mesh,
                                const std::vector<Cut>& cuts, const std::vector<int>& partial,
                                const std::string& who) {
  MUONRT_REQUIRE(
      l.n_last_dims >= 0 && l.n_last_dims <= mesh.dims() && (l.last_dims || l.n_last_dims == 0),
      kInvalidArg, who, ": layout has n_last_dims ", l.n_last_dims, ", but the mesh has ",
      mesh.dims(), " dimensions; pass the number of last_dims");
  if (l.last_dims) return {l.last_dims, l.last_dims + l.n_last_dims};
  std::vector<int> out;
  for (int d = 0; d < mesh.dims(); ++d) {
    bool named = std::find(partial.begin(), partial.end(), d) != partial.end();
    for (const Cut& cut : cuts) {
      named =
          named || std::find(cut.mesh_dims.begin(), cut.mesh_dims.end(), d) != cut.mesh_dims.end();
    }
    if (!named) out.push_back(d);
  }
  return out;
}

Layout make(const std::shared_ptr<const Mesh>& mesh, const std::vector<int64_t>& shape,
            std::vector<Cut> cuts, std::vector<int> partial, const muonrt_layout_t& l,
            const std::string& who) {
  MUONRT_REQUIRE(
      l.n_values >= 0 && (l.values || l.n_values == 0), kInvalidArg, who, ": layout has n_values ",
      l.n_values,
      ", but must not be negative, and must be 0 without a list; pass the number of values");
  MUONRT_REQUIRE(
      l.kind != MUONRT_LAYOUT_CUTS || l.n_values == 0, kInvalidArg, who, ": layout has ",
      l.n_values,
      " values, but its kind is MUONRT_LAYOUT_CUTS, which has none; set the kind of the values, or "
      "leave them out");
  const std::vector<int64_t> values(l.values, l.values + l.n_values);
  if (l.kind == MUONRT_LAYOUT_CUTS)
    return named(who, [&] { return Layout::from_cuts(mesh, shape, cuts, partial); });
  const auto dims = read_last_dims(l, *mesh, cuts, partial, who);
  switch (l.kind) {
    case MUONRT_LAYOUT_ROW_BOUNDS:
      return named(who, [&] {
        return Layout::with_row_bounds(mesh, shape, cuts, dims, l.last_dim, values, partial);
      });
    case MUONRT_LAYOUT_OWNER:
      MUONRT_REQUIRE(values.size() == 1, kInvalidArg, who, ": layout has ", values.size(),
                     " values, but an owner is a single value; pass one");
      return named(who,
                   [&] { return Layout::with_owner(mesh, shape, dims, values[0], cuts, partial); });
    case MUONRT_LAYOUT_FLAT: {
      MUONRT_REQUIRE(values.size() % 2 == 0, kInvalidArg, who, ": layout has ", values.size(),
                     " values, but flat ranges are pairs; pass begin and end for each shard");
      std::vector<std::pair<int64_t, int64_t>> ranges;
      for (size_t i = 0; i < values.size(); i += 2) ranges.emplace_back(values[i], values[i + 1]);
      return named(who,
                   [&] { return Layout::with_flat(mesh, shape, cuts, dims, ranges, partial); });
    }
    default:
      throw Error(
          kInvalidArg,
          cat(who, ": layout has kind ", l.kind,
              ", but must be 0 (cuts), 1 (row bounds), 2 (owner) or 3 (flat); use one of these"));
  }
}

}  // namespace

std::shared_ptr<const Mesh> LayoutReader::mesh(const muonrt_mesh_t* given, const std::string& who) {
  std::vector<int64_t> shape = {world_};
  std::vector<std::string> names = {"world"};
  std::vector<int32_t> ranks;
  if (given) {
    muonrt_mesh_t defaults;
    muonrt_mesh_init(&defaults);
    const muonrt_mesh_t m = read_struct(given, defaults, cat(who, ": mesh").c_str());
    MUONRT_REQUIRE(m.ndim >= 1 && m.ndim <= MUONRT_MAX_DIMS, kInvalidArg, who, ": mesh has ndim ",
                   m.ndim, ", but must be between 1 and ", MUONRT_MAX_DIMS,
                   "; pass the number of sizes");
    MUONRT_REQUIRE(m.shape, kInvalidArg, who, ": the shape of the mesh is NULL; pass ", m.ndim,
                   " sizes");
    shape.assign(m.shape, m.shape + m.ndim);
    names.clear();
    for (int i = 0; m.names && i < m.ndim; ++i) {
      MUONRT_REQUIRE(m.names[i], kInvalidArg, who, ": mesh name ", i,
                     " is NULL; name it or pass no names");
      names.emplace_back(m.names[i]);
      for (const char c : names.back()) {
        MUONRT_REQUIRE(!is_control(c), kInvalidArg, who, ": mesh name ", i,
                       " contains the control character ", static_cast<int>(c), "; remove it");
      }
    }
    if (m.ranks) {
      int64_t count = 1;
      for (const int64_t n : shape) {
        MUONRT_REQUIRE(n >= 1 && n <= world_ && count * n <= world_, kInvalidArg, who,
                       ": mesh shape ", shape, " does not fit the communicator, which has ", world_,
                       " ranks; use sizes >= 1 whose product is at most this");
        count *= n;
      }
      ranks.assign(m.ranks, m.ranks + count);
    }
  }
  for (const auto& known : meshes_) {
    if (known->is_made_of(shape, names, ranks)) return known;
  }
  auto made = named(who, [&] { return std::make_shared<const Mesh>(shape, names, ranks); });
  MUONRT_REQUIRE(made->largest_rank() < world_, kInvalidArg, who, ": its mesh contains rank ",
                 made->largest_rank(), ", but the communicator has ", world_,
                 " ranks; use ranks below that");
  meshes_.push_back(made);
  return made;
}

Layout LayoutReader::read(const muonrt_layout_t* layout, int32_t ndim, const int64_t* shape,
                          const std::string& who) {
  MUONRT_REQUIRE(ndim >= 0 && ndim <= MUONRT_MAX_DIMS, kInvalidArg, who, ": ndim is ", ndim,
                 ", but must be between 0 and ", MUONRT_MAX_DIMS, "; pass the number of sizes");
  MUONRT_REQUIRE(shape || ndim == 0, kInvalidArg, who, ": shape is NULL; pass ", ndim, " sizes");
  const std::vector<int64_t> sizes(shape, shape + ndim);
  for (const int64_t n : sizes) {
    MUONRT_REQUIRE(n >= 0, kInvalidArg, who, ": shape is ", sizes,
                   ", but a size cannot be negative; pass sizes >= 0");
  }
  muonrt_layout_t defaults;
  muonrt_layout_init(&defaults);
  const muonrt_layout_t l =
      layout ? read_struct(layout, defaults, cat(who, ": layout").c_str()) : defaults;
  const auto over = mesh(l.mesh, who);
  MUONRT_REQUIRE(l.reading == MUONRT_READING_LITERAL || l.reading == MUONRT_READING_ORDERED,
                 kInvalidArg, who, ": layout has reading ", l.reading,
                 ", but must be 0 (literal) or 1 (ordered); use one of these");
  MUONRT_REQUIRE(!l.placements || l.n_cuts == 0, kInvalidArg, who,
                 ": layout has both placements and cuts; pass one of them");
  MUONRT_REQUIRE(
      l.n_flat_dims >= 0 && l.n_flat_dims <= over->dims() && (l.flat_dims || l.n_flat_dims == 0),
      kInvalidArg, who, ": layout has n_flat_dims ", l.n_flat_dims, ", but the mesh has ",
      over->dims(), " dimensions; pass the number of flat_dims");
  std::vector<Cut> cuts;
  std::vector<int> partial;
  if (l.placements) {
    const auto placements = read_placements(l.placements, over->dims(), who);
    named(who, [&] {
      cuts = cuts_from_placements(*over, ndim, placements, static_cast<Reading>(l.reading),
                                  {l.flat_dims, l.flat_dims + l.n_flat_dims});
      partial = partial_dims(placements);
    });
  } else {
    cuts = read_cuts(l, over->dims(), who);
  }
  Layout made = make(over, sizes, std::move(cuts), std::move(partial), l, who);
  const Layout& known = layouts_.try_emplace(made.hash(), made).first->second;
  return known.has_definition_of(made) ? known : made;
}

}  // namespace muonrt::api
