#include "muonrt/strategies.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/read_layout.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"
#include "layout/parse.hpp"
#include "layout/strategies.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

void store(const Mesh& m, muonrt_mesh_t* mesh, muonrt_mesh_storage_t* storage) {
  MUONRT_REQUIRE(storage->ranks && storage->capacity >= m.size(), kInvalidArg,
                 "mesh storage: it holds ", storage->capacity, " ranks, and the mesh has ",
                 m.size(), "; give it `ranks` of that many numbers");
  char* text = storage->text;
  char* const end = storage->text + sizeof storage->text;
  for (int d = 0; d < m.dims(); ++d) {
    const std::string& name = m.names()[static_cast<size_t>(d)];
    MUONRT_REQUIRE(end - text > static_cast<int64_t>(name.size()), kInvalidArg,
                   "mesh storage: the dimensions' names are longer than ", sizeof storage->text,
                   " characters together; shorten them");
    std::copy(name.begin(), name.end(), text);
    storage->names[d] = text;
    storage->shape[d] = m.shape()[static_cast<size_t>(d)];
    text += name.size();
    *text++ = 0;
  }
  std::copy(m.ranks().begin(), m.ranks().end(), storage->ranks);
  muonrt_mesh_init(mesh);
  mesh->ndim = m.dims();
  mesh->shape = storage->shape;
  mesh->names = storage->names;
  mesh->ranks = storage->ranks;
}

muonrt_placement_t in_c(const Placement& p) {
  return {static_cast<int32_t>(p.kind), p.tensor_dim,
          p.kind == PlacementKind::kStridedShard ? p.split_factor : 0};
}

void check_storage(const char* function, const muonrt_mesh_t* mesh,
                   const muonrt_mesh_storage_t* storage) {
  require_pointer(mesh, function, "mesh");
  require_pointer(storage, function, "storage");
  api::struct_size_of(storage, "mesh storage", sizeof *storage);
}

}  // namespace

extern "C" {

void muonrt_mesh_storage_init_sized(muonrt_mesh_storage_t* storage, uint32_t size) {
  muonrt::fill_sized(storage, size);
}

muonrt_status_t muonrt_layout_lift(muonrt_layout_t* lifted, muonrt_mesh_t* mesh,
                                   muonrt_mesh_storage_t* storage, muonrt_placement_t* placements,
                                   const muonrt_layout_t* layout, const int32_t* submeshes,
                                   int32_t world) {
  constexpr const char* kName = "muonrt_layout_lift";
  return as_status([&] {
    check_storage(kName, mesh, storage);
    require_pointer(lifted, kName, "lifted");
    require_pointer(placements, kName, "placements");
    require_pointer(layout, kName, "layout");
    require_pointer(submeshes, kName, "submeshes");
    muonrt_layout_t out;
    muonrt_layout_init(&out);
    out = api::read_struct(layout, out, "layout");
    require_pointer(out.mesh, kName, "layout->mesh");
    MUONRT_REQUIRE(world >= 1, kInvalidArg, "layout: world is ", world,
                   ", but must be at least 1; pass the number of ranks");
    MUONRT_REQUIRE(
        out.kind == MUONRT_LAYOUT_CUTS || out.last_dims, kInvalidArg,
        "layout: last_dims is NULL for kind ", out.kind,
        ", so the mesh dimension \"submeshes\" would be added to them; list the dimensions");
    const auto sub = api::LayoutReader(world).mesh(out.mesh, "layout");
    std::vector<std::vector<int32_t>> all;
    for (int32_t r = 0; r < world; ++r) {
      const int32_t* row = submeshes + r * sub->size();
      all.emplace_back(row, row + sub->size());
    }
    const Mesh made = lift(*sub, all);
    MUONRT_REQUIRE(made.dims() <= MUONRT_MAX_DIMS, kInvalidArg, "layout: the submesh has ",
                   sub->dims(), " dimensions, but may have at most ", MUONRT_MAX_DIMS,
                   " together with \"submeshes\"; merge some");
    if (out.placements) {
      std::copy(out.placements, out.placements + sub->dims(), placements);
      std::fill(placements + sub->dims(), placements + made.dims(),
                muonrt_placement_t{MUONRT_PLACEMENT_REPLICATE, 0, 0});
      out.placements = placements;
    }
    store(made, mesh, storage);
    out.mesh = mesh;
    *lifted = out;
    return Status::kOk;
  });
}

muonrt_status_t muonrt_placements_from_names(muonrt_placement_t* placements,
                                             const muonrt_mesh_t* mesh, int32_t world,
                                             int32_t tp_dim, int32_t expert) {
  return as_status([&] {
    require_pointer(placements, "muonrt_placements_from_names", "placements");
    require_pointer(mesh, "muonrt_placements_from_names", "mesh");
    MUONRT_REQUIRE(tp_dim >= -1 && tp_dim < MUONRT_MAX_DIMS, kInvalidArg, "placements: tp_dim is ",
                   tp_dim, ", but must be between -1 and ", MUONRT_MAX_DIMS - 1,
                   "; pass a tensor dimension, or -1");
    MUONRT_REQUIRE(expert == 0 || expert == 1, kInvalidArg, "placements: expert is ", expert,
                   ", but must be 0 or 1; set it to one of these");
    const auto m = api::LayoutReader(world).mesh(mesh, "mesh");
    for (const Placement& p : placements_from_names(*m, tp_dim, expert == 1)) {
      *placements++ = in_c(p);
    }
    return Status::kOk;
  });
}

muonrt_status_t muonrt_placements_for_tensor(muonrt_placement_t* placements,
                                             const muonrt_mesh_t* mesh, int32_t world,
                                             const char* name, int32_t ndim, const int64_t* shape,
                                             int32_t expert, int32_t transposed) {
  constexpr const char* kName = "muonrt_placements_for_tensor";
  return as_status([&] {
    require_pointer(placements, kName, "placements");
    require_pointer(mesh, kName, "mesh");
    MUONRT_REQUIRE(ndim >= 0 && ndim <= MUONRT_MAX_DIMS && (shape || ndim == 0), kInvalidArg, kName,
                   ": ndim is ", ndim, ", but must be between 0 and ", MUONRT_MAX_DIMS,
                   ", and must be 0 without a shape; pass the number of sizes");
    for (const auto& [field, value] : {std::pair{"expert", expert}, {"transposed", transposed}})
      MUONRT_REQUIRE(value == 0 || value == 1, kInvalidArg, kName, ": ", field, " is ", value,
                     ", but must be 0 or 1; use one of these");
    MUONRT_REQUIRE(expert == 0 || ndim == 3, kInvalidArg, kName, ": expert is 1, but ndim is ",
                   ndim, "; pass a stack of three dimensions");
    const auto m = api::LayoutReader(world).mesh(mesh, "mesh");
    for (const Placement& p : placements_for_tensor(*m, name ? name : "", {shape, shape + ndim},
                                                    expert == 1, transposed == 1))
      *placements++ = in_c(p);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_placements_parse(muonrt_placement_t* placements, int32_t capacity,
                                        int32_t* count, const char* text) {
  return as_status([&] {
    require_pointer(count, "muonrt_placements_parse", "count");
    require_pointer(text, "muonrt_placements_parse", "text");
    MUONRT_REQUIRE(capacity >= 0 && (placements || capacity == 0), kInvalidArg,
                   "muonrt_placements_parse: capacity is ", capacity,
                   " with a null buffer or below 0; pass a buffer or capacity 0");
    const auto parsed = parse_placements(text);
    *count = static_cast<int32_t>(parsed.size());
    for (int32_t i = 0; i < std::min(capacity, *count); ++i) {
      placements[i] = in_c(parsed[static_cast<size_t>(i)]);
    }
    return Status::kOk;
  });
}

}  // extern "C"
