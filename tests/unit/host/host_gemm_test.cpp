#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <functional>
#include <utility>

#include "base/error.hpp"
#include "support/sanitized.hpp"
#include "unit/host/host_gemm_cases.hpp"

using namespace gemm_cases;
using muonrt::Error;
using muonrt::Status;

namespace {

struct Size {
  int64_t m, n, k;
};

// The sizes cover block boundaries, single rows and columns, and short and long sums.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 130, 9},    {130, 1, 9},   {5, 3, 2},
                           {31, 33, 65}, {97, 101, 103}, {256, 256, 8}, {257, 255, 33},
                           {17, 300, 1}, {1, 1, 10007},  {2, 513, 3},   {513, 2, 64}};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Factors {
  float alpha, beta, gamma;
};

/// Computes one product of the given sizes and dtypes, and returns the number of wrong elements of
/// C. A symmetric product is A A^T. For a symmetric product, the lower half of D is NaN, because it
/// must not be read.
int64_t wrong_elements(const TileKernel& kernel, Size s, DType in, DType out, bool transpose_b,
                       const Factors& f, bool symmetric = false) {
  Matrix a(in, s.m, s.k), c(out, s.m, s.n), d(out, s.m, s.n), given(out, s.m, s.n);
  Matrix b(in, transpose_b ? s.n : s.k, transpose_b ? s.k : s.n);
  fill_uniform(a, 1);
  fill_uniform(b, symmetric ? 1 : 2);
  symmetric ? fill_symmetric(d, 3) : fill_uniform(d, 3);
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j)
      given.set(i, j, symmetric && j < i ? std::nan("") : d.at(i, j));
  const bool add = f.beta != 0.0f;
  GemmArgs args{.a = a.ref(),
                .b = symmetric ? a.ref() : b.ref(),
                .d = {},
                .c = c.ref(),
                .transpose_b = transpose_b,
                .symmetric = symmetric,
                .alpha = f.alpha,
                .beta = f.beta,
                .gamma = f.gamma};
  if (add) args.d = given.ref();
  REQUIRE(multiply(kernel, args, 2));
  CHECK(c.surroundings_untouched());
  if (symmetric) CHECK(c.symmetric_bits());
  return count_wrong(args, a, b, add ? &d : nullptr, c);
}

}  // namespace

TEST_CASE("host gemm: every shape is within the rounding of its sum, in every dtype",
          "[unit][gemm]") {
  for (const TileKernel* kernel : kernels()) {
    for (const DType in : kDTypes) {
      for (size_t i = 0; i < std::size(kSizes); i += kSanitized ? 2 : 1) {
        const Size s = kSizes[i];
        INFO(kernel->identity() << ", " << name_of(in) << ", " << s.m << " x " << s.n << " x "
                                << s.k);
        CHECK(wrong_elements(*kernel, s, in, DType::kF32, false, {0.5f, 0.0f, 3.0f}) == 0);
        CHECK(wrong_elements(*kernel, s, in, DType::kBF16, true, {-1.5f, 0.75f, 2.25f}) == 0);
        CHECK(wrong_elements(*kernel, s, in, DType::kF16, false, {0.0f, 1.0f, -1.0f}) == 0);
      }
      for (const int64_t n : {5, 257, 530})
        CHECK(wrong_elements(*kernel, {n, n, 37}, in, in, true, {-1.5f, 0.75f, 2.25f}, true) == 0);
    }
  }
}

TEST_CASE("host gemm: after bytes_for, gemm creates no objects for the shape", "[unit][gemm]") {
  const Widened counting(muonrt::host::default_kernel());
  ThreadPool pool(2);
  GemmScratch scratch(counting);
  Matrix a(DType::kBF16, 300, 50), c(DType::kF32, 300, 300);
  fill_uniform(a, 14);
  const GemmArgs args{.a = a.ref(), .b = a.ref(), .d = {}, .c = c.ref(), .transpose_b = true};
  const int64_t bytes = scratch.bytes_for(args, 2);
  const int made = counting.panels;
  CHECK(made > 0);
  std::vector<char> memory(static_cast<size_t>(bytes));
  scratch.set_workspace(memory.data(), bytes);
  for (int i = 0; i < 3; ++i) gemm(args, pool, scratch);
  CHECK(scratch.bytes_for(args, 2) == bytes);
  CHECK(counting.panels == made);
}

TEST_CASE("host gemm: invalid arguments are rejected, and C is unchanged", "[unit][gemm]") {
  Matrix a(DType::kF32, 6, 4), b(DType::kF32, 4, 5), c(DType::kF32, 6, 5), wide(DType::kF32, 8, 8);
  const GemmArgs good{.a = a.ref(), .b = b.ref(), .d = {}, .c = c.ref()};
  const std::pair<Status, std::function<void(GemmArgs&)>> cases[] = {
      {Status::kInvalidArgument, [](GemmArgs& g) { g.a.cols = 3; }},
      {Status::kInvalidArgument, [](GemmArgs& g) { g.transpose_b = true; }},
      {Status::kInvalidArgument, [](GemmArgs& g) { g.symmetric = true; }},
      {Status::kInvalidArgument, [](GemmArgs& g) { g.b.ld = 4; }},
      {Status::kInvalidArgument, [](GemmArgs& g) { g.c.rows = -6; }},
      {Status::kNotSupported, [](GemmArgs& g) { g.a.dtype = static_cast<DType>(9); }},
      {Status::kInvalidArgument, [&](GemmArgs& g) { g.d = wide.ref(), g.beta = 1.0f; }},
      {Status::kInvalidArgument, [&](GemmArgs& g) { g.a = g.b = g.c = wide.ref(); }}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    INFO("case " << i);
    GemmArgs args = good;
    cases[i].second(args);
    Status status = Status::kOk;
    try {
      multiply(muonrt::host::default_kernel(), args);
    } catch (const Error& error) {
      status = error.status();
    }
    CHECK(status == cases[i].first);
  }
  ThreadPool pool(1);
  GemmScratch scratch;
  const int64_t bytes = scratch.bytes_for(good, 1);
  std::vector<char> memory(static_cast<size_t>(bytes));
  scratch.set_workspace(memory.data(), bytes - 1);
  CHECK_THROWS_AS(gemm(good, pool, scratch), Error);
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 5; ++j) CHECK(std::isnan(c.value(i, j)));
}

namespace {

struct Variant {
  const char* what;
  int threads = 1;
  int64_t offset = 0;    // offset of every matrix, in elements
  int64_t widening = 0;  // is added to every leading dimension
  int64_t scratch_offset = 0;
  int64_t packed = GemmScratch::kPackedBytes;
};

constexpr Variant kVariants[] = {
    {.what = "three threads", .threads = 3},
    {.what = "bases off by one element", .offset = 1},
    {.what = "leading dimensions + 64", .widening = 64},
    {.what = "scratch off by four bytes", .scratch_offset = 4},
    {.what = "few panels at a time", .packed = 1},
    {.what = "all at once", .threads = 3, .offset = 3, .widening = 5, .scratch_offset = 20},
};

struct Case {
  int64_t m, n, k;
  bool transpose_b, symmetric;
};

constexpr Case kCases[] = {{1, 77, 77, false, false},    {33, 64, 131, true, false},
                           {100, 77, 213, false, false}, {270, 260, 24, true, false},
                           {270, 270, 36, true, true},   {16, 16, 2100, true, true},
                           {530, 1030, 6, false, false}, {10, 270, 270, false, false}};

/// Returns the result of one case. The operands have the same values in all variants.
Matrix result(const TileKernel& kernel, const Case& s, DType dtype, const Variant& v) {
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return std::make_unique<Matrix>(dtype, rows, cols, muonrt::host_ld(cols) + v.widening,
                                    v.offset);
  };
  const auto a = matrix(s.m, s.k), d = matrix(s.m, s.n);
  const auto b = s.transpose_b ? matrix(s.n, s.k) : matrix(s.k, s.n);
  fill_uniform(*a, 1);
  fill_uniform(*b, 2);
  s.symmetric ? fill_symmetric(*d, 3) : fill_uniform(*d, 3);
  Matrix c(dtype, s.m, s.n, muonrt::host_ld(s.n) + v.widening, v.offset);
  REQUIRE(multiply(kernel,
                   {.a = a->ref(),
                    .b = s.symmetric ? a->ref() : b->ref(),
                    .d = d->ref(),
                    .c = c.ref(),
                    .transpose_b = s.transpose_b,
                    .symmetric = s.symmetric,
                    .alpha = 0.7f,
                    .beta = -0.3f,
                    .gamma = 0.1f},
                   v.threads, v.scratch_offset, v.packed));
  return c;
}

void check_bits(DType dtype) {
  for (const TileKernel* kernel : kernels()) {
    for (const Case& s : kCases) {
      Matrix expected = result(*kernel, s, dtype, {.what = "plain"});
      for (const Variant& v : kVariants) {
        Matrix c = result(*kernel, s, dtype, v);
        INFO(kernel->identity() << ", " << s.m << " x " << s.n << " x " << s.k << ": " << v.what);
        CHECK(c.same_bits(expected));
      }
    }
  }
}

}  // namespace

TEST_CASE("host gemm: bits depend only on shape and values", "[unit][gemm][bits][nosan]") {
  check_bits(DType::kF32);
  check_bits(DType::kBF16);
}

TEST_CASE("host gemm: earlier products with the same scratch change no bit", "[unit][gemm][bits]") {
  struct Shape {
    int64_t m, n, k, widening;
    DType dtype;
    bool transpose_b, symmetric;
  };
  // Each shape differs slightly from an earlier one, so the test detects a cache key that omits a
  // size.
  const Shape shapes[] = {
      {140, 140, 140, 0, DType::kF32, false, false}, {140, 140, 140, 0, DType::kF32, true, false},
      {140, 140, 140, 0, DType::kF32, true, true},   {140, 140, 140, 8, DType::kF32, true, false},
      {140, 140, 140, 0, DType::kBF16, true, false}, {140, 140, 44, 0, DType::kF32, false, false},
      {140, 44, 140, 0, DType::kF32, false, false},  {44, 140, 140, 0, DType::kF32, false, false},
      {530, 530, 9, 0, DType::kF32, true, false},    {530, 530, 9, 0, DType::kF32, true, true}};
  for (const TileKernel* kernel : kernels()) {
    ThreadPool pool(2);
    GemmScratch shared(*kernel);
    RedZoned memory(int64_t{1} << 21, 0);
    shared.set_workspace(memory.data(), int64_t{1} << 21);
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const Shape& s : shapes) {
        const int64_t rows = s.transpose_b ? s.n : s.k, cols = s.transpose_b ? s.k : s.n;
        Matrix a(s.dtype, s.m, s.k, muonrt::host_ld(s.k) + s.widening);
        Matrix b(s.dtype, rows, cols, muonrt::host_ld(cols) + s.widening);
        Matrix c(s.dtype, s.m, s.n), expected(s.dtype, s.m, s.n);
        fill_uniform(a, 10);
        fill_uniform(b, 11);
        GemmArgs args{.a = a.ref(),
                      .b = s.symmetric ? a.ref() : b.ref(),
                      .d = {},
                      .c = expected.ref(),
                      .transpose_b = s.transpose_b,
                      .symmetric = s.symmetric};
        REQUIRE(multiply(*kernel, args));
        args.c = c.ref();
        gemm(args, pool, shared);
        INFO(kernel->identity() << ", " << s.m << " x " << s.n << " x " << s.k);
        CHECK(c.same_bits(expected));
      }
    }
    CHECK(memory.red_zones_untouched());
  }
}

// With this order, the kernels for AVX2 and AVX-512 compute bitwise identical f32 products.
TEST_CASE("host gemm: kernels other than oneDNN sum f32 from first to last",
          "[unit][gemm][bits][nosan]") {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{23, 300, 600}, {270, 9, 5}, {7, 8, 257}}) {
    Matrix a(DType::kF32, m, k), b(DType::kF32, k, n);
    fill_uniform(a, 6);
    fill_uniform(b, 7);
    for (const TileKernel* kernel : kernels()) {
      const std::string name = kernel->name();
      if (name != "portable" && name != "avx2" && name != "avx512") continue;
      Matrix c(DType::kF32, m, n), expected(DType::kF32, m, n);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          float sum = 0.0f;
          for (int64_t l = 0; l < k; ++l) {
            const float x = a.value(i, l), y = b.value(l, j);
            sum = name == "portable" ? sum + x * y : std::fma(x, y, sum);
          }
          expected.set(i, j, static_cast<double>(sum));
        }
      }
      REQUIRE(multiply(*kernel, {.a = a.ref(), .b = b.ref(), .d = {}, .c = c.ref()}));
      INFO(name);
      CHECK(c.same_bits(expected));
    }
  }
}

// The AVX-512 instruction that rounds to bf16 flushes subnormal values and keeps the payload of
// NaN.
TEST_CASE("host gemm: NaN, infinities and subnormal values are rounded to bf16 like all others",
          "[unit][gemm][bits]") {
  constexpr int64_t kSide = 256;
  constexpr uint32_t kLowBits[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Matrix d(dtype, kSide, kSide);
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const uint32_t high = static_cast<uint32_t>(i * kSide + j) << 16;
        d.set(i, j, std::bit_cast<float>(high | kLowBits[(i + j) % 6]));
      }
    }
    for (const float beta : {1.0f, 0.75f}) {
      for (const bool symmetric : {false, true}) {
        Matrix a(DType::kBF16, kSide, 1), expected(DType::kBF16, kSide, kSide);
        for (int64_t i = 0; i < kSide; ++i)
          for (int64_t j = 0; j < kSide; ++j) {
            const float x = symmetric ? d.value(std::min(i, j), std::max(i, j)) : d.value(i, j);
            expected.set(i, j, static_cast<double>(0.0f + beta * x));
          }
        GemmArgs args{.a = a.ref(),
                      .b = a.ref(),
                      .d = d.ref(),
                      .c = {},
                      .transpose_b = true,
                      .symmetric = symmetric,
                      .alpha = 1.0f,
                      .beta = beta};
        args.a.cols = args.b.cols = 0;
        for (const TileKernel* kernel : kernels()) {
          Matrix c(DType::kBF16, kSide, kSide);
          args.c = c.ref();
          REQUIRE(multiply(*kernel, args));
          INFO(kernel->identity() << ", D " << name_of(dtype) << ", beta " << beta);
          CHECK(c.same_bits(expected));
        }
      }
    }
  }
}
