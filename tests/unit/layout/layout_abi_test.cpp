#include <array>
#include <catch2/catch.hpp>

#include "muonrt/muonrt.hpp"

// Tests local shapes and strides in the C ABI: a parameter may have the local shape that
// muonrt_layout_get_local_shape() returns.

using Catch::Contains;
using Pair = std::array<int64_t, 2>;

namespace {

muonrt_layout_t made(muonrt_layout_kind_t kind, const int64_t* values, int64_t n) {
  muonrt_layout_t out = muonrt::layout();
  out.kind = kind;
  out.values = values;
  out.n_values = n;
  return out;
}

/// Creates an optimizer with one parameter of this layout. Returns the error message, or "" if
/// there is none.
std::string error_of(const muonrt_layout_t* layout, Pair shape, const int64_t* local_shape,
                     const int64_t* strides) {
  std::vector<float> data(16, 1.0f), grad(16, 0.5f);
  muonrt_param_t p = muonrt::param();
  p.name = "w";
  p.ndim = 2;
  p.shape = shape.data();
  p.layout = layout;
  p.local_shape = local_shape;
  p.strides = p.grad_strides = strides;
  p.data = data.data();
  p.grad = grad.data();
  try {
    muonrt::Optimizer(muonrt::Comm::self(), muonrt::options(), {muonrt::adamw_group()}, {p});
  } catch (const muonrt::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("layout abi: the local shape of flat ranges is (elements, 1)", "[unit][abi][layout]") {
  const int64_t shape[] = {4, 4}, ranges[] = {0, 5, 5, 16, 16, 16}, sizes[] = {3};
  muonrt_mesh_t mesh;
  muonrt_mesh_init(&mesh);
  mesh.ndim = 1;
  mesh.shape = sizes;
  muonrt_layout_t layout = made(MUONRT_LAYOUT_FLAT, ranges, 6);
  layout.mesh = &mesh;
  const Pair expected[] = {{5, 1}, {11, 1}, {0, 1}, {0, 0}};
  for (int32_t rank = 0; rank < 4; ++rank) {
    Pair out = {-7, -7};
    REQUIRE(muonrt_layout_get_local_shape(out.data(), &layout, 4, 2, shape, rank) == MUONRT_OK);
    CHECK(out == expected[rank]);
  }
  // A layout of kind MUONRT_LAYOUT_CUTS consists only of cuts, so `values` must not be set.
  layout.kind = MUONRT_LAYOUT_CUTS;
  Pair out;
  CHECK(muonrt_layout_get_local_shape(out.data(), &layout, 4, 2, shape, 0) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("6 values, but its kind is MUONRT_LAYOUT_CUTS"));
}

TEST_CASE("layout abi: a parameter with flat ranges may set local_shape", "[unit][abi][layout]") {
  const int64_t range[] = {0, 16};
  const muonrt_layout_t flat = made(MUONRT_LAYOUT_FLAT, range, 2);
  CHECK(error_of(&flat, {4, 4}, Pair{16, 1}.data(), nullptr) == "");
  for (const Pair& claim : {Pair{16, 0}, {16, -1}, {4, 4}, {15, 1}})
    CHECK_THAT(error_of(&flat, {4, 4}, claim.data(), nullptr), Contains("local_shape"));
}

TEST_CASE("layout abi: strides of size-1 dimensions and of empty shards are ignored",
          "[unit][abi][layout]") {
  const int64_t shard = 0, range[] = {0, 12};
  const muonrt_layout_t owned = made(MUONRT_LAYOUT_OWNER, &shard, 1),
                        flat = made(MUONRT_LAYOUT_FLAT, range, 2);
  const auto error = [](Pair shape, Pair strides, const muonrt_layout_t* layout) {
    return error_of(layout, shape, nullptr, strides.data());
  };
  CHECK(error({3, 4}, {4, 1}, nullptr) == "");
  CHECK(error({12, 1}, {1, 99}, nullptr) == "");
  CHECK(error({1, 12}, {99, 1}, &owned) == "");
  CHECK(error({0, 12}, {99, 99}, nullptr) == "");
  CHECK(error({3, 4}, {1, 99}, &flat) == "");
  CHECK_THAT(error({3, 4}, {4, 1}, &flat), Contains("strides is [4, 1] for [12, 1] on rank 0"));
  CHECK_THAT(error({3, 4}, {1, 3}, nullptr), Contains("param 'w': strides is [1, 3]"));
}
