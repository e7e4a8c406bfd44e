#include <catch2/catch.hpp>
#include <functional>

#include "base/error.hpp"
#include "unit/host/host_gemm_cases.hpp"

using namespace gemm_cases;
using muonrt::Error;
using muonrt::Status;

namespace {

struct Size {
  int64_t m, n, k;
};

constexpr Size kSizes[] = {{1, 1, 1},      {1, 7, 1},      {1, 130, 9},    {130, 1, 9},
                           {5, 3, 2},      {13, 11, 17},   {16, 16, 16},   {31, 33, 65},
                           {64, 48, 128},  {97, 101, 103}, {127, 129, 70}, {128, 128, 8},
                           {255, 257, 16}, {256, 256, 8},  {257, 255, 33}, {17, 300, 1},
                           {3, 5, 4099},   {1, 1, 10007},  {2, 513, 3},    {513, 2, 64}};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// One product of the given sizes and dtypes; the number of wrong elements of C.
int64_t wrong_elements(const TileKernel& kernel, Size s, DType in, DType out, bool transpose_b,
                       float alpha, float beta, float gamma) {
  Matrix a(in, s.m, s.k), c(out, s.m, s.n), d(out, s.m, s.n);
  Matrix b(in, transpose_b ? s.n : s.k, transpose_b ? s.k : s.n);
  fill_uniform(a, 1);
  fill_uniform(b, 2);
  fill_uniform(d, 3);
  const bool add = beta != 0.0f;
  GemmArgs args{.a = a.ref(),
                .b = b.ref(),
                .d = {},
                .c = c.ref(),
                .transpose_b = transpose_b,
                .alpha = alpha,
                .beta = beta,
                .gamma = gamma};
  if (add) args.d = d.ref();
  REQUIRE(multiply(kernel, args, 2));
  CHECK(c.surroundings_untouched());
  return count_wrong({a, b, add ? &d : nullptr, transpose_b, alpha, beta, gamma}, c, out);
}

}  // namespace

TEST_CASE("host gemm: every shape is within the rounding of its sum", "[unit][gemm]") {
  for (const TileKernel* kernel : kernels()) {
    for (const DType in : kDTypes) {
      for (const Size s : kSizes) {
        INFO(kernel->identity() << ", " << name_of(in) << ", " << s.m << " x " << s.n << " x "
                                << s.k);
        CHECK(wrong_elements(*kernel, s, in, DType::kF32, false, 1.0f, 0.0f, 0.0f) == 0);
        CHECK(wrong_elements(*kernel, s, in, DType::kBF16, true, 1.0f, 0.0f, 0.0f) == 0);
      }
    }
  }
}

TEST_CASE("host gemm: alpha, beta and gamma each reach the result once", "[unit][gemm]") {
  for (const TileKernel* kernel : kernels()) {
    for (const DType in : kDTypes) {
      for (const DType out : kDTypes) {
        for (const Size s : {Size{37, 300, 19}, Size{300, 37, 19}, Size{260, 260, 5}}) {
          INFO(kernel->identity() << ", " << name_of(in) << " to " << name_of(out) << ", " << s.m
                                  << " x " << s.n);
          CHECK(wrong_elements(*kernel, s, in, out, true, -1.5f, 0.75f, 2.25f) == 0);
          CHECK(wrong_elements(*kernel, s, in, out, false, 0.0f, 1.0f, -1.0f) == 0);
          CHECK(wrong_elements(*kernel, s, in, out, false, 0.5f, 0.0f, 3.0f) == 0);
        }
      }
    }
  }
}

TEST_CASE("host gemm: integers come out exact, bf16 rounded once", "[unit][gemm]") {
  for (const TileKernel* kernel : kernels()) {
    for (const DType in : kDTypes) {
      for (const DType out : kDTypes) {
        const int64_t m = 20, n = 270, k = 1000;
        Matrix a(in, m, k), b(in, n, k), c(out, m, n), d(out, m, n);
        fill_integers(a, 4);
        fill_integers(b, 5);
        fill_integers(d, 6);
        REQUIRE(multiply(*kernel, {.a = a.ref(),
                                   .b = b.ref(),
                                   .d = d.ref(),
                                   .c = c.ref(),
                                   .transpose_b = true,
                                   .alpha = 2.0f,
                                   .beta = -3.0f,
                                   .gamma = 7.0f}));
        int64_t wrong = 0;
        const Problem problem{a, b, &d, true, 2.0, -3.0, 7.0};
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const float exact = static_cast<float>(problem.at(i, j).value);
            const double half = textbook::half_value(textbook::half_bits(problem.at(i, j).value));
            wrong += c.value(i, j) != (out == DType::kF32    ? exact
                                       : out == DType::kBF16 ? to_f32(muonrt::to_bf16(exact))
                                                             : static_cast<float>(half));
          }
        }
        INFO(kernel->identity() << ", " << name_of(in) << " to " << name_of(out));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE(
    "host gemm: A A^T declared symmetric is symmetric to the bit and reads D's upper half alone",
    "[unit][gemm]") {
  for (const TileKernel* kernel : kernels()) {
    for (const DType dtype : kDTypes) {
      for (const int64_t n : {1, 5, 17, 48, 255, 257, 530}) {
        const int64_t k = 37;
        Matrix a(dtype, n, k), c(dtype, n, n), d(dtype, n, n), upper(dtype, n, n);
        fill_uniform(a, 7);
        fill_symmetric(d, 8);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) upper.set(i, j, j < i ? std::nan("") : d.at(i, j));
        }
        REQUIRE(multiply(*kernel,
                         {.a = a.ref(),
                          .b = a.ref(),
                          .d = upper.ref(),
                          .c = c.ref(),
                          .transpose_b = true,
                          .symmetric = true,
                          .alpha = -1.5f,
                          .beta = 0.75f,
                          .gamma = 2.25f},
                         2));
        INFO(kernel->identity() << ", " << name_of(dtype) << ", n = " << n);
        CHECK(c.symmetric_bits());
        CHECK(count_wrong({a, a, &d, true, -1.5, 0.75, 2.25}, c, dtype) == 0);
        CHECK(c.surroundings_untouched());
      }
    }
  }
}

TEST_CASE("host gemm: D may be an operand of the product", "[unit][gemm]") {
  const int64_t n = 270;
  for (const TileKernel* kernel : kernels()) {
    for (const DType dtype : kDTypes) {
      INFO(kernel->identity() << ", " << name_of(dtype));
      Matrix r(dtype, n, n), z(dtype, n, n), x(dtype, n, 40), y(dtype, n, 40);
      fill_symmetric(r, 9);
      fill_uniform(x, 10);
      REQUIRE(multiply(*kernel, {.a = r.ref(),
                                 .b = r.ref(),
                                 .d = r.ref(),
                                 .c = z.ref(),
                                 .symmetric = true,
                                 .alpha = 2.0f,
                                 .beta = -4.5f}));
      CHECK(z.symmetric_bits());
      CHECK(count_wrong({r, r, &r, false, 2.0, -4.5, 0.0}, z, dtype) == 0);
      REQUIRE(multiply(*kernel,
                       {.a = z.ref(), .b = x.ref(), .d = x.ref(), .c = y.ref(), .beta = 3.5f}));
      CHECK(count_wrong({z, x, &x, false, 1.0, 3.5, 0.0}, y, dtype) == 0);
    }
  }
}

TEST_CASE("host gemm: preparing a shape leaves nothing to make when it runs", "[unit][gemm]") {
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
  scratch.lend(memory.data(), bytes);
  for (int i = 0; i < 3; ++i) gemm(args, pool, scratch);
  CHECK(scratch.bytes_for(args, 2) == bytes);
  CHECK(counting.panels == made);
}

TEST_CASE("host gemm: bad arguments are refused and C is left alone", "[unit][gemm]") {
  Matrix a(DType::kF32, 6, 4), b(DType::kF32, 4, 5), c(DType::kF32, 6, 5), wide(DType::kF32, 8, 8);
  fill_uniform(a, 15);
  fill_uniform(b, 16);
  fill_uniform(wide, 17);
  const GemmArgs good{.a = a.ref(), .b = b.ref(), .d = {}, .c = c.ref()};
  const auto status_of = [&](const std::function<void(GemmArgs&)>& spoil) {
    GemmArgs args = good;
    spoil(args);
    try {
      multiply(muonrt::host::default_kernel(), args);
    } catch (const Error& error) {
      return error.status();
    }
    return Status::kOk;
  };
  CHECK(status_of([](GemmArgs& g) { g.a.cols = 3; }) == Status::kInvalidArgument);
  CHECK(status_of([](GemmArgs& g) { g.transpose_b = true; }) == Status::kInvalidArgument);
  CHECK(status_of([](GemmArgs& g) { g.symmetric = true; }) == Status::kInvalidArgument);
  CHECK(status_of([](GemmArgs& g) { g.b.ld = 4; }) == Status::kInvalidArgument);
  CHECK(status_of([](GemmArgs& g) { g.c.rows = -6; }) == Status::kInvalidArgument);
  CHECK(status_of([](GemmArgs& g) { g.a.dtype = static_cast<DType>(9); }) == Status::kNotSupported);
  CHECK(status_of([&](GemmArgs& g) {
          g.d = wide.ref();
          g.beta = 1.0f;
        }) == Status::kInvalidArgument);
  CHECK(status_of([&](GemmArgs& g) { g.a = wide.ref(), g.b = wide.ref(), g.c = wide.ref(); }) ==
        Status::kInvalidArgument);

  ThreadPool pool(1);
  GemmScratch scratch;
  const int64_t bytes = scratch.bytes_for(good, 1);
  std::vector<char> memory(static_cast<size_t>(bytes));
  scratch.lend(memory.data(), bytes - 1);
  CHECK_THROWS_AS(gemm(good, pool, scratch), Error);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 5; ++j) CHECK(std::isnan(c.value(i, j)));
  }
  scratch.lend(memory.data(), bytes);
  gemm(good, pool, scratch);
  CHECK(count_wrong({a, b, nullptr, false, 1.0, 0.0, 0.0}, c, DType::kF32) == 0);
}
