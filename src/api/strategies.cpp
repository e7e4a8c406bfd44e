#include "muonrt/strategies.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/read_layout.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"
#include "layout/parse.hpp"
#include "layout/strategies.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

const std::vector<std::string> kNames = {"pp", "dp", "fsdp", "cp", "ep", "tp"};

void store(const Mesh& made, muonrt_mesh_t* mesh, muonrt_mesh_storage_t* storage) {
  // The C struct has at least one dimension.
  const Mesh m = made.dims() > 0 ? made : Mesh({1}, {"one"}, made.ranks());
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

std::vector<std::pair<std::string, int64_t>> in_order(const muonrt_process_sizes_t& s) {
  const int64_t sizes[] = {s.pp, s.dp, s.fsdp, s.cp, s.ep, s.tp};
  std::vector<std::pair<std::string, int64_t>> out;
  std::string order = s.order ? s.order : "pp,dp,fsdp,cp,ep,tp";
  order += ',';
  for (size_t begin = 0; begin < order.size();) {
    const size_t comma = order.find(',', begin);
    std::string name = order.substr(begin, comma - begin);
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    begin = comma + 1;
    const auto at = std::find(kNames.begin(), kNames.end(), name);
    MUONRT_REQUIRE(at != kNames.end(), kInvalidArg, "process sizes: order names '", name,
                   "' (known are ", kNames, "); correct it");
    for (const auto& known : out) {
      MUONRT_REQUIRE(known.first != name, kInvalidArg, "process sizes: order names '", name,
                     "' twice; name each once");
    }
    out.emplace_back(name, sizes[at - kNames.begin()]);
  }
  for (size_t i = 0; i < kNames.size(); ++i) {
    const bool named = std::any_of(out.begin(), out.end(),
                                   [&](const auto& known) { return known.first == kNames[i]; });
    MUONRT_REQUIRE(named || sizes[i] == 1, kInvalidArg, "process sizes: ", kNames[i], " is ",
                   sizes[i], ", and order does not name it; add it");
  }
  return out;
}

GroupRanks read_groups(const muonrt_process_groups_t* given) {
  require_pointer(given, "muonrt_mesh_from_groups", "groups");
  muonrt_process_groups_t defaults;
  muonrt_process_groups_init(&defaults);
  const auto g = api::read_struct(given, defaults, "process groups");
  const int32_t* const lists[] = {g.pp, g.dp, g.fsdp, g.cp, g.ep, g.tp};
  const int32_t counts[] = {g.n_pp, g.n_dp, g.n_fsdp, g.n_cp, g.n_ep, g.n_tp};
  GroupRanks out;
  for (size_t i = 0; i < kNames.size(); ++i) {
    MUONRT_REQUIRE(counts[i] >= 0 && (lists[i] || counts[i] == 0), kInvalidArg,
                   "process groups: n_", kNames[i], " is ", counts[i], " with ", kNames[i],
                   lists[i] ? " given" : " null", " (0 or more, with a list); correct it");
    MUONRT_REQUIRE(counts[i] <= Mesh::kMaxRanks, kInvalidArg, "process groups: n_", kNames[i],
                   " is ", counts[i], "; correct it");
    out.emplace_back(lists[i], lists[i] + counts[i]);
  }
  return out;
}

/// Every rank's groups, on every rank. Collective. Memory is taken where all ranks hear of its
/// want.
std::vector<GroupRanks> gather_groups(Comm& comm, const GroupRanks& mine) {
  const auto world = static_cast<size_t>(comm.size());
  std::vector<int64_t> counts, all_counts;
  std::vector<int32_t> members, all;
  std::vector<GroupRanks> out;
  run_collectively(comm, [&] {
    for (const auto& group : mine) {
      counts.push_back(static_cast<int64_t>(group.size()));
      members.insert(members.end(), group.begin(), group.end());
    }
    all_counts.resize(world * counts.size());
  });
  comm.allgather(counts.data(), all_counts.data(),
                 static_cast<int64_t>(counts.size() * sizeof(int64_t)));
  int64_t most = 0;
  run_collectively(comm, [&] {
    for (size_t r = 0; r < world; ++r) {
      int64_t total = 0;
      for (size_t i = 0; i < counts.size(); ++i) {
        const int64_t count = all_counts[r * counts.size() + i];
        MUONRT_REQUIRE(count >= 0 && count <= Mesh::kMaxRanks, Status::kMismatch,
                       "process groups: rank ", r, " says that ", kNames[i], " has ", count,
                       " ranks; use one version of muonrt on all ranks");
        total += count;
      }
      most = std::max(most, total);
    }
    members.resize(static_cast<size_t>(most));
    all.resize(world * static_cast<size_t>(most));
  });
  comm.allgather(members.data(), all.data(), most * static_cast<int64_t>(sizeof(int32_t)));
  run_collectively(comm, [&] {
    out.resize(world);
    for (size_t r = 0; r < world; ++r) {
      auto at = all.begin() + static_cast<int64_t>(r) * most;
      for (size_t i = 0; i < counts.size(); ++i) {
        const int64_t count = all_counts[r * counts.size() + i];
        out[r].emplace_back(at, at + count);
        at += count;
      }
    }
  });
  return out;
}

}  // namespace

extern "C" {

void muonrt_mesh_storage_init_sized(muonrt_mesh_storage_t* storage, uint32_t size) {
  muonrt::fill_sized(storage, size);
}

void muonrt_process_sizes_init_sized(muonrt_process_sizes_t* sizes, uint32_t size) {
  muonrt::fill_sized(sizes, size, [](muonrt_process_sizes_t& out) {
    out = {0, 0, 1, 1, 1, 1, 1, 1, "pp,dp,fsdp,cp,ep,tp"};
  });
}

void muonrt_process_groups_init_sized(muonrt_process_groups_t* groups, uint32_t size) {
  muonrt::fill_sized(groups, size);
}

muonrt_status_t muonrt_mesh_from_sizes(muonrt_mesh_t* mesh, muonrt_mesh_storage_t* storage,
                                       const muonrt_process_sizes_t* sizes, int32_t world) {
  return as_status([&] {
    check_storage("muonrt_mesh_from_sizes", mesh, storage);
    require_pointer(sizes, "muonrt_mesh_from_sizes", "sizes");
    muonrt_process_sizes_t defaults;
    muonrt_process_sizes_init(&defaults);
    const auto s = api::read_struct(sizes, defaults, "process sizes");
    store(mesh_from_sizes(in_order(s), world), mesh, storage);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_mesh_from_groups(muonrt_mesh_t* mesh, muonrt_mesh_storage_t* storage,
                                        muonrt_comm_t* comm,
                                        const muonrt_process_groups_t* groups) {
  return as_status([&] {
    Comm& host = api::unwrap(comm, "muonrt_mesh_from_groups", "comm").host;
    GroupRanks mine;
    run_collectively(host, [&] {
      check_storage("muonrt_mesh_from_groups", mesh, storage);
      mine = read_groups(groups);
    });
    const auto all = gather_groups(host, mine);
    run_collectively(host, [&] { store(mesh_from_groups(kNames, all), mesh, storage); });
    return Status::kOk;
  });
}

muonrt_status_t muonrt_mesh_select(muonrt_mesh_t* out, muonrt_mesh_storage_t* storage,
                                   const muonrt_mesh_t* mesh, int32_t world, const char* name,
                                   int64_t index) {
  return as_status([&] {
    check_storage("muonrt_mesh_select", out, storage);
    require_pointer(name, "muonrt_mesh_select", "name");
    const auto m = api::LayoutReader(world).mesh(mesh, "mesh");
    store(select(*m, m->dim_of(name), index), out, storage);
    return Status::kOk;
  });
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
                   " (a number of ranks); pass 1 or more");
    MUONRT_REQUIRE(out.kind == MUONRT_LAYOUT_CUTS || out.last_dims, kInvalidArg,
                   "layout: last_dims is null for kind ", out.kind,
                   " (another mesh dimension would join them); name them");
    const auto sub = api::LayoutReader(world).mesh(out.mesh, "layout");
    std::vector<std::vector<int32_t>> all;
    for (int32_t r = 0; r < world; ++r) {
      const int32_t* row = submeshes + r * sub->size();
      all.emplace_back(row, row + sub->size());
    }
    const Mesh made = lift(*sub, all);
    MUONRT_REQUIRE(made.dims() <= MUONRT_MAX_DIMS, kInvalidArg, "layout: the submesh has ",
                   sub->dims(), " dimensions (", MUONRT_MAX_DIMS,
                   " with the one of the lines); join some");
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
                   tp_dim, " (a tensor dimension, or -1); correct it");
    MUONRT_REQUIRE(expert == 0 || expert == 1, kInvalidArg, "placements: expert is ", expert,
                   " (0 or 1); correct it");
    const auto m = api::LayoutReader(world).mesh(mesh, "mesh");
    for (const Placement& p : placements_by_name(*m, tp_dim, expert == 1)) {
      *placements++ = in_c(p);
    }
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
    const auto parsed = parse_dtensor_placements(text);
    *count = static_cast<int32_t>(parsed.size());
    for (int32_t i = 0; i < std::min(capacity, *count); ++i) {
      placements[i] = in_c(parsed[static_cast<size_t>(i)]);
    }
    return Status::kOk;
  });
}

}  // extern "C"
