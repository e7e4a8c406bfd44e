#include <array>
#include <catch2/catch.hpp>

#include "muonrt/muonrt.hpp"

// Flat ranges at the C ABI: what muonrt_layout_local_shape says is what a parameter may claim.

using Catch::Contains;

TEST_CASE("layout abi: flat ranges have the shape of their elements in one line",
          "[unit][abi][layout]") {
  const int64_t shape[] = {4, 4}, ranges[] = {0, 5, 5, 16, 16, 16};
  muonrt_mesh_t mesh;
  muonrt_mesh_init(&mesh);
  const int64_t sizes[] = {3};
  mesh.ndim = 1;
  mesh.shape = sizes;
  muonrt_layout_t layout = muonrt::layout();
  layout.mesh = &mesh;
  layout.kind = MUONRT_LAYOUT_FLAT;
  layout.values = ranges;
  layout.n_values = 6;
  const auto shape_at = [&](int32_t rank) {
    std::vector<int64_t> out = {-7, -7};
    REQUIRE(muonrt_layout_local_shape(out.data(), &layout, 4, 2, shape, rank) == MUONRT_OK);
    return out;
  };
  CHECK(shape_at(0) == std::vector<int64_t>{5, 1});
  CHECK(shape_at(1) == std::vector<int64_t>{11, 1});
  CHECK(shape_at(2) == std::vector<int64_t>{0, 1});
  CHECK(shape_at(3) == std::vector<int64_t>{0, 0});
}

TEST_CASE("layout abi: a parameter of flat ranges may state its local shape",
          "[unit][abi][layout]") {
  const int64_t shape[] = {4, 4}, ranges[] = {0, 16};
  std::vector<float> data(16, 1.0f), grad(16, 0.5f);
  muonrt_layout_t layout = muonrt::layout();
  layout.kind = MUONRT_LAYOUT_FLAT;
  layout.values = ranges;
  layout.n_values = 2;
  for (const std::array<int64_t, 2> claim :
       {std::array<int64_t, 2>{16, 1}, {16, 0}, {16, -1}, {4, 4}, {15, 1}}) {
    INFO(claim[0] << ", " << claim[1]);
    muonrt_param_t p = muonrt::param();
    p.name = "w";
    p.ndim = 2;
    p.shape = shape;
    p.dtype = MUONRT_DTYPE_F32;
    p.layout = &layout;
    p.local_shape = claim.data();
    p.data = data.data();
    p.grad = grad.data();
    const auto make = [&] {
      muonrt::Optimizer(muonrt::Comm::self(), muonrt::options(), {muonrt::muon_group()}, {p});
    };
    if (claim == std::array<int64_t, 2>{16, 1}) {
      CHECK_NOTHROW(make());
    } else {
      CHECK_THROWS_WITH(make(), Contains("local_shape"));
    }
  }
}

TEST_CASE("layout abi: values without a kind that they belong to are refused",
          "[unit][abi][layout]") {
  const int64_t shape[] = {4, 4}, ranges[] = {0, 16};
  int64_t local[2] = {};
  muonrt_layout_t layout = muonrt::layout();
  layout.values = ranges;
  layout.n_values = 2;
  CHECK(muonrt_layout_local_shape(local, &layout, 1, 2, shape, 0) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_last_error(), Contains("2 values (kind is MUONRT_LAYOUT_CUTS"));
}

TEST_CASE("layout abi: strides of dimensions of one index, and of an empty shard, mean nothing",
          "[unit][abi][layout]") {
  std::vector<float> data(12, 1.0f), grad(12, 0.5f);
  muonrt_layout_t owned = muonrt::layout(), flat = muonrt::layout();
  const int64_t shard = 0, range[] = {0, 12};
  owned.kind = MUONRT_LAYOUT_OWNER;
  owned.values = &shard;
  owned.n_values = 1;
  flat.kind = MUONRT_LAYOUT_FLAT;
  flat.values = range;
  flat.n_values = 2;
  const auto text = [&](std::array<int64_t, 2> shape, std::array<int64_t, 2> strides,
                        const muonrt_layout_t* layout) -> std::string {
    muonrt_param_t p = muonrt::param();
    p.name = "w";
    p.ndim = 2;
    p.shape = shape.data();
    p.strides = p.grad_strides = strides.data();
    p.layout = layout;
    p.data = data.data();
    p.grad = grad.data();
    try {
      muonrt::Optimizer(muonrt::Comm::self(), muonrt::options(), {muonrt::adamw_group()}, {p});
    } catch (const muonrt::Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(text({3, 4}, {4, 1}, nullptr) == "");
  CHECK(text({12, 1}, {1, 99}, nullptr) == "");
  CHECK(text({1, 12}, {99, 1}, &owned) == "");
  CHECK(text({0, 12}, {99, 99}, nullptr) == "");
  CHECK(text({3, 4}, {1, 99}, &flat) == "");
  CHECK_THAT(text({3, 4}, {4, 1}, &flat), Contains("strides is [4, 1] for [12, 1] on rank 0"));
  CHECK_THAT(text({3, 4}, {1, 3}, nullptr), Contains("param 'w': strides is [1, 3]"));
}
