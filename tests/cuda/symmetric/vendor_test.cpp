// Tests products that use the vendor's library, with a fake library. Checks which algorithms are
// used, the number of launches, and errors of the library.

#include <catch2/catch.hpp>

#include "command/bench/fastest_products.hpp"
#include "cuda/machine.hpp"
#include "cuda/products/panels.hpp"
#include "cuda/symmetric/fake_cublas.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

struct Refused {
  explicit Refused(const fake_cublas::Refusals& what) { fake_cublas::refuse(what); }
  ~Refused() { fake_cublas::refuse({}); }
};

struct Shape {
  int64_t m, n, k;
  bool transpose_b = false;
};
constexpr Shape kShape{24, 40, 56};

/// Returns the result of C = A op(B) for `count` pairs of matrices.
Bytes product(Machine& machine, const Shape& s, int64_t count, DType dtype = DType::kBF16) {
  const auto make = [&](int64_t rows, int64_t cols, uint64_t seed) {
    MatrixBatch m{nullptr, dtype, rows, cols, machine.ops().leading_dimension(cols, dtype),
                  count,   0};
    m.stride = rows * m.ld;
    m.data = machine.put(values(seed, dtype, count * m.stride));
    return m;
  };
  Product p;
  p.a = make(s.m, s.k, 1);
  p.b = s.transpose_b ? make(s.n, s.k, 2) : make(s.k, s.n, 2);
  p.c = make(s.m, s.n, 3);
  p.transpose_b = s.transpose_b;
  machine.ops().multiply(machine.on(), p);
  machine.finish();
  return machine.get(static_cast<const unsigned char*>(p.c.data),
                     count * p.c.stride * size_of(dtype));
}

std::vector<int64_t> counts_of(const std::vector<fake_cublas::Launch>& launches) {
  std::vector<int64_t> out;
  for (const auto& launch : launches) out.push_back(launch.count);
  return out;
}

}  // namespace

TEST_CASE("vendor: an algorithm is searched once for a shape, for any number of matrices",
          "[emulated]") {
  Machine machine(make_device());
  product(machine, kShape, 1);
  const int64_t searches = fake_cublas::searches();
  fake_cublas::launches();
  for (const int64_t count : {1, 4, 3, 4}) product(machine, kShape, count);
  CHECK(fake_cublas::searches() == searches);
  CHECK(counts_of(fake_cublas::launches()) == std::vector<int64_t>{1, 4, 3, 4});
  product(machine, {24, 40, 56, true}, 1);
  CHECK(fake_cublas::searches() == searches + 1);
}

TEST_CASE(
    "vendor: an algorithm is chosen for the number of matrices that fill a GPU, from the shape "
    "alone",
    "[emulated]") {
  fake_cublas::asked();
  for (const int64_t count : {1, 7}) {
    Machine machine(make_device());
    product(machine, kShape, count);
    const auto asked = fake_cublas::asked();
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].count == 128);  // the maximum, because all shapes are small
    CHECK(asked[0].stride == 24 * 64);
    CHECK(asked[0].reductions == 0);
  }
  struct Expected {
    int64_t m, n, count;
  };
  // 264 tiles of 128 x 256 are two tiles for each of 132 SMs. One matrix has 6 x 8 or 32 x 16
  // tiles.
  for (const Expected& e :
       {Expected{768, 2048, 6}, Expected{4096, 4104, 1}, Expected{129, 257, 66}}) {
    Machine machine(make_device());
    machine.ops().reserve(e.m, e.n, 64, DType::kBF16);
    for (const auto& asked : fake_cublas::asked()) CHECK(asked.count == e.count);
  }
}

TEST_CASE("vendor: an algorithm that computes no single matrix is skipped", "[emulated]") {
  const Refused refused({.single = true});
  Machine machine(make_device());
  fake_cublas::launches();
  for (const int64_t count : {1, 5}) product(machine, kShape, count);
  const auto seen = fake_cublas::launches();
  CHECK(counts_of(seen) == std::vector<int64_t>{1, 5});
  for (const auto& launch : seen) CHECK(launch.candidate == 1);
}

TEST_CASE("vendor: the fastest algorithm of a batch is found by timing the proposals",
          "[emulated]") {
  Machine reference(make_device()),
      machine(make_cuda_device(0, {.make_products = tool::make_fastest_products}));
  CHECK(machine.device->describe() != reference.device->describe());
  fake_cublas::asked();
  const Bytes expected = product(reference, kShape, 5);
  CHECK(fake_cublas::asked().size() == 1);
  CHECK(difference(product(machine, kShape, 5), expected) == -1);
  // There is one search for the whole batch, and one for its single matrices. Both allow algorithms
  // that divide the depth.
  const auto asked = fake_cublas::asked();
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].count == 5);
  CHECK(asked[1].count == 1);
  for (const auto& one : asked) CHECK(one.reductions == 7);
  fake_cublas::launches();
  CHECK(difference(product(machine, kShape, 5), expected) == -1);
  const auto seen = fake_cublas::launches();
  CHECK(fake_cublas::asked().empty());
  for (const auto& launch : seen) CHECK(launch.candidate == 2);
  product(machine, kShape, 4);
  CHECK(fake_cublas::asked().size() == 2);
}

TEST_CASE("vendor: row panels cover the upper triangle once, from the number of rows alone",
          "[emulated]") {
  for (int64_t n = 1; n <= 9000; n = n < 1100 ? n + 1 : n + 13) {
    CAPTURE(n);
    const int count = panel_count(n);
    REQUIRE(count == (n < 1024 ? 1 : n < 2048 ? 2 : 4));
    REQUIRE(panel_begin(n, 0) == 0);
    REQUIRE(panel_begin(n, count) == n);
    double executed = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t begin = panel_begin(n, i), end = panel_begin(n, i + 1);
      REQUIRE((begin % 128 == 0 && begin < end));
      executed += static_cast<double>(end - begin) * static_cast<double>(n - begin);
    }
    const double dense = static_cast<double>(n) * static_cast<double>(n);
    REQUIRE(executed / dense <= (count == 1 ? 1.0 : count == 2 ? 0.755 : 0.635));
  }
}

TEST_CASE("vendor: a symmetric product executes the panels only, with exact results in batches",
          "[emulated]") {
  struct Expected {
    SymmetricCase of;
    std::vector<std::pair<int64_t, int64_t>> panels;  // rows and columns of each panel
  };
  const std::vector<Expected> all = {
      {{1000, 24, 2, true, 1.0f, 3.0f}, {{1000, 1000}}},
      {{1030, 24, 3, true, -2.0f, 1.0f}, {{512, 1030}, {518, 518}}},
      {{1153, 9, 1, false, 1.0f, 0.0f, 0.0f, true, DType::kF16}, {{640, 1153}, {513, 513}}},
      {{2050, 8}, {{512, 2050}, {512, 1538}, {512, 1026}, {514, 514}}}};
  for (const Expected& e : all) {
    CAPTURE(e.of.name());
    Machine machine(make_cuda_device(0, {.symmetric = SymmetricProvider::kVendor}));
    const int64_t searches = fake_cublas::searches();
    machine.ops().reserve(e.of.n, e.of.n, e.of.k, e.of.dtype);
    // reserve() searches for A B and for A B^T: for the whole product, and, if there are several
    // panels, for each panel.
    const auto count = std::ssize(e.panels);
    CHECK(fake_cublas::searches() - searches == 2 * (count > 1 ? 1 + count : 1));
    const SymmetricTrial trial(machine, e.of, 3);
    trial.wipe(machine);
    fake_cublas::launches();
    machine.ops().multiply(machine.on(), trial.product);
    machine.finish();
    CHECK(trial.wrong(machine) == 0);
    std::vector<std::pair<int64_t, int64_t>> panels;
    for (const auto& launch : fake_cublas::launches()) {
      CHECK(launch.count == e.of.count);
      panels.emplace_back(launch.n, launch.m);  // column-major
    }
    CHECK(panels == e.panels);
  }
}

TEST_CASE("vendor: without an algorithm for a batch the fastest is one for single matrices",
          "[emulated]") {
  Machine reference(make_device());
  const Bytes expected = product(reference, kShape, 3);
  const Refused refused({.batches = true});
  Machine machine(make_cuda_device(0, {.make_products = tool::make_fastest_products}));
  product(machine, kShape, 3);
  fake_cublas::launches();
  CHECK(difference(product(machine, kShape, 3), expected) == -1);
  CHECK(counts_of(fake_cublas::launches()) == std::vector<int64_t>(3, 1));
}

TEST_CASE("vendor: a batch that no algorithm computes has no fastest one, and no naive loops",
          "[emulated]") {
  struct Expected {
    fake_cublas::Refusals what;
    std::string reason;
  };
  for (const Expected& e : {Expected{{.shapes = true}, "it proposes none"},
                            Expected{{.candidates = true}, "it proposes none"},
                            Expected{{.launches = true}, "the launch is rejected"}}) {
    const Refused refused(e.what);
    Machine machine(make_cuda_device(0, {.make_products = tool::make_fastest_products}));
    try {
      product(machine, kShape, 3);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.status() == Status::kNotSupported);
      CHECK(error.message().find("3 products 24 x 40 of depth 56") != std::string::npos);
      CHECK(error.message().find(e.reason) != std::string::npos);
    }
  }
}

TEST_CASE("vendor: reserve finds the algorithms of both forms before the first product",
          "[emulated]") {
  Machine machine(make_device());
  machine.ops().reserve(24, 40, 56, DType::kF16);
  const int64_t searches = fake_cublas::searches();
  product(machine, kShape, 2, DType::kF16);
  product(machine, {24, 40, 56, true}, 2, DType::kF16);
  CHECK(fake_cublas::searches() == searches);
}

TEST_CASE("vendor: matrices are column-major, so operands are exchanged", "[emulated]") {
  Machine machine(make_device());
  fake_cublas::launches();
  product(machine, {8, 24, 40}, 1);
  product(machine, {8, 24, 40, true}, 1);
  const auto seen = fake_cublas::launches();
  REQUIRE(seen.size() == 2);
  for (const auto& launch : seen) {
    CHECK(launch.m == 24);
    CHECK(launch.n == 8);
    CHECK(launch.k == 40);
  }
  CHECK_FALSE(seen[0].transposed);
  CHECK(seen[1].transposed);
}

TEST_CASE("vendor: batches that an algorithm rejects are launched one by one, with the same bits",
          "[emulated]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Machine machine(make_device());
    const Bytes together = product(machine, kShape, 5, dtype);
    for (const fake_cublas::Refusals& what :
         {fake_cublas::Refusals{.batches = true}, fake_cublas::Refusals{.most = 4}}) {
      const Refused refused(what);
      Machine other(make_device());
      fake_cublas::launches();
      CHECK(difference(product(other, kShape, 5, dtype), together) == -1);
      CHECK(counts_of(fake_cublas::launches()) == std::vector<int64_t>(5, 1));
      product(other, kShape, 4, dtype);
      CHECK(counts_of(fake_cublas::launches()) ==
            (what.batches ? std::vector<int64_t>(4, 1) : std::vector<int64_t>{4}));
    }
  }
}

TEST_CASE("vendor: shapes without an algorithm are computed by naive loops", "[emulated]") {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Machine naive(make_device(true));
    const Bytes expected = product(naive, kShape, 3, dtype);
    for (const fake_cublas::Refusals& what :
         {fake_cublas::Refusals{.shapes = true}, fake_cublas::Refusals{.candidates = true}}) {
      const Refused refused(what);
      Machine machine(make_device());
      fake_cublas::launches();
      CHECK(difference(product(machine, kShape, 3, dtype), expected) == -1);
      CHECK(fake_cublas::launches().empty());
    }
  }
}

TEST_CASE("vendor: a product that fails is an error that names the call and the reason",
          "[emulated]") {
  Machine machine(make_device());
  const Refused refused({.launches = true});
  try {
    product(machine, kShape, 1);
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kDevice);
    CHECK(e.message().find("matmul(") != std::string::npos);
    CHECK(e.message().find("the launch is rejected") != std::string::npos);
  }
}

TEST_CASE("vendor: each GPU has its own handles, which are reused; other objects are destroyed",
          "[emulated]") {
  // Destroying a handle would wait for the whole GPU.
  const int64_t alive = fake_cublas::alive();
  const int64_t handles = [] {
    const Machine first(make_device(false, 0)), second(make_device(false, 1));
    return fake_cublas::handles();
  }();
  {
    Machine first(make_device(false, 0)), second(make_device(false, 1));
    const Bytes here = product(first, kShape, 2);
    CHECK(difference(product(second, kShape, 2), here) == -1);
    CHECK(difference(product(first, kShape, 2), here) == -1);
    CHECK(fake_cublas::alive() > alive);
  }
  CHECK(fake_cublas::alive() == alive);
  CHECK(fake_cublas::handles() == handles);
}
