#include "muonrt/layout.h"

#include "api/as_status.hpp"
#include "api/read_layout.hpp"
#include "base/sized_struct.hpp"

using namespace muonrt;

namespace {

void check_world(int32_t world, int32_t rank) {
  MUONRT_REQUIRE(world >= 1, Status::kInvalidArgument, "layout: world is ", world,
                 ", but must be 1 or more; pass the number of ranks");
  MUONRT_REQUIRE(rank >= 0 && rank < world, Status::kInvalidArgument, "layout: rank is ", rank,
                 ", but must be between 0 and ", world - 1, "; pass a rank of the communicator");
}

}  // namespace

extern "C" {

void muonrt_mesh_init_sized(muonrt_mesh_t* mesh, uint32_t size) { muonrt::fill_sized(mesh, size); }

void muonrt_layout_init_sized(muonrt_layout_t* layout, uint32_t size) {
  muonrt::fill_sized(layout, size);
}

muonrt_status_t muonrt_layout_get_local_shape(int64_t* local_shape, const muonrt_layout_t* layout,
                                              int32_t world, int32_t ndim, const int64_t* shape,
                                              int32_t rank) {
  return api::as_status([&] {
    check_world(world, rank);
    const Layout l = api::LayoutReader(world).read(layout, ndim, shape, "layout");
    if (ndim > 0) api::require_pointer(local_shape, "muonrt_layout_get_local_shape", "local_shape");
    auto local = l.local_shape(rank);
    // For a flat range, the list contains only one size.
    local.resize(l.shape().size(), l.holds_mesh_rank(rank) ? 1 : 0);
    std::copy(local.begin(), local.end(), local_shape);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_layout_get_runs(muonrt_run_t* runs, int64_t capacity, int64_t* n_runs,
                                       const muonrt_layout_t* layout, int32_t world, int32_t ndim,
                                       const int64_t* shape, int32_t rank, int32_t dim) {
  return api::as_status([&] {
    check_world(world, rank);
    api::require_pointer(n_runs, "muonrt_layout_get_runs", "n_runs");
    MUONRT_REQUIRE(capacity >= 0 && (runs || capacity == 0), Status::kInvalidArgument,
                   "muonrt_layout_get_runs: capacity is ", capacity,
                   " with a null buffer or below 0; pass a buffer or capacity 0");
    const Layout l = api::LayoutReader(world).read(layout, ndim, shape, "layout");
    const Runs found = l.runs(rank, dim);
    *n_runs = static_cast<int64_t>(found.size());
    for (int64_t i = 0; i < std::min(capacity, *n_runs); ++i)
      runs[i] = {found[i].begin, found[i].end};
    return Status::kOk;
  });
}

}  // extern "C"
