#include <array>
#include <catch2/catch.hpp>
#include <cfenv>

#include "support/faults/flush_to_zero.hpp"
#include "unit/host/host_gemm_cases.hpp"

using namespace gemm_cases;

namespace {

struct Variant {
  const char* what;
  int threads = 1;
  int64_t offset = 0;    // of every base, in elements
  int64_t widening = 0;  // added to every leading dimension
  int64_t scratch_offset = 0;
  int64_t packed = GemmScratch::kPackedBytes;
};

constexpr Variant kVariants[] = {
    {.what = "again"},
    {.what = "two threads", .threads = 2},
    {.what = "three threads", .threads = 3},
    {.what = "bases off by one element", .offset = 1},
    {.what = "leading dimensions + 7", .widening = 7},
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

/// The result of one case, its operands filled with the same values wherever they lie.
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

TEST_CASE("host gemm: f32 bits follow from shape and values alone", "[unit][gemm][bits]") {
  check_bits(DType::kF32);
}

TEST_CASE("host gemm: bf16 bits follow from shape and values alone", "[unit][gemm][bits]") {
  check_bits(DType::kBF16);
}

TEST_CASE("host gemm: what a scratch served before changes no bit", "[unit][gemm][bits]") {
  struct Shape {
    int64_t m, n, k, widening;
    DType dtype;
    bool transpose_b, symmetric;
  };
  // Each differs from an earlier one in little that a cache of shapes might overlook.
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
    shared.lend(memory.data(), int64_t{1} << 21);
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

TEST_CASE("host gemm: the caller's rounding and flushing change no bit and are still there after",
          "[unit][gemm][bits]") {
  for (const TileKernel* kernel : kernels()) {
    // Sums that round, and among them denormal ones.
    Matrix a(DType::kF32, 300, 64), b(DType::kF32, 290, 64);
    Matrix expected(DType::kF32, 300, 290), c(DType::kF32, 300, 290);
    fill_uniform(a, 8);
    fill_uniform(b, 9);
    for (int64_t i = 0; i < 300; i += 2) {
      for (int64_t j = 0; j < 64; ++j) a.set(i, j, a.at(i, j) * 0x1p-136);
    }
    const GemmArgs args{.a = a.ref(),
                        .b = b.ref(),
                        .d = {},
                        .c = expected.ref(),
                        .transpose_b = true,
                        .alpha = 0.7f};
    REQUIRE(multiply(*kernel, args, 2));
    CHECK(std::fpclassify(expected.value(0, 0)) == FP_SUBNORMAL);

    GemmArgs again = args;
    again.c = c.ref();
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetround(FE_UPWARD);
    fp_control::flush_to_zero();
    const uint64_t set = fp_control::get();
    const bool inside = multiply(*kernel, again, 2);
    const int mode = std::fegetround();
    const bool kept = fp_control::get() == set;
    std::fesetenv(&before);
    INFO(kernel->identity());
    CHECK(inside);
    CHECK(mode == FE_UPWARD);
    CHECK(kept);
    CHECK(c.same_bits(expected));
  }
}

TEST_CASE("host gemm: bf16 without native products is the f32 product of the same values",
          "[unit][gemm][bits]") {
  for (const TileKernel* kernel : kernels()) {
    const Widened widened(*kernel);
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{150, 300, 70}, {1, 20, 300}}) {
      Matrix a(DType::kBF16, m, k), b(DType::kBF16, n, k), c(DType::kF32, m, n);
      Matrix wide_a(DType::kF32, m, k), wide_b(DType::kF32, n, k), expected(DType::kF32, m, n);
      fill_uniform(a, 4);
      fill_uniform(b, 5);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < k; ++j) wide_a.set(i, j, a.at(i, j));
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < k; ++j) wide_b.set(i, j, b.at(i, j));
      }
      REQUIRE(multiply(widened,
                       {.a = a.ref(), .b = b.ref(), .d = {}, .c = c.ref(), .transpose_b = true}));
      REQUIRE(multiply(widened, {.a = wide_a.ref(),
                                 .b = wide_b.ref(),
                                 .d = {},
                                 .c = expected.ref(),
                                 .transpose_b = true}));
      INFO(kernel->identity());
      CHECK(c.same_bits(expected));
    }
  }
}

TEST_CASE("host gemm: the portable kernel sums from first to last", "[unit][gemm][bits]") {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{23, 300, 600}, {270, 9, 5}, {7, 8, 257}}) {
    Matrix a(DType::kF32, m, k), b(DType::kF32, k, n), c(DType::kF32, m, n);
    Matrix expected(DType::kF32, m, n);
    fill_uniform(a, 6);
    fill_uniform(b, 7);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0.0f;
        for (int64_t l = 0; l < k; ++l) sum += a.value(i, l) * b.value(l, j);
        expected.set(i, j, static_cast<double>(sum));
      }
    }
    REQUIRE(multiply(muonrt::host::portable_kernel(),
                     {.a = a.ref(), .b = b.ref(), .d = {}, .c = c.ref()}));
    CHECK(c.same_bits(expected));
  }
}
