#include "train/gemm.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

using muonrt::train::gemm;
using muonrt::train::gemm_portable;
using muonrt::train::Trans;

namespace {

template <class T>
struct Problem {
  int64_t m, n, k;
  Trans ta, tb;
  T beta;
  int64_t lda, ldb, ldc;
  std::vector<T> a, b, c;
};

template <class T>
Problem<T> make(int64_t m, int64_t n, int64_t k, Trans ta, Trans tb, T beta, int64_t pad) {
  std::mt19937 random(static_cast<unsigned>(m * 131 + n * 17 + k));
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  auto fill = [&](int64_t count) {
    std::vector<T> v(static_cast<size_t>(count));
    for (T& x : v) x = static_cast<T>(uniform(random));
    return v;
  };
  const int64_t lda = (ta == Trans::kNo ? k : m) + pad;
  const int64_t ldb = (tb == Trans::kNo ? n : k) + pad;
  const int64_t ldc = n + pad;
  Problem<T> p{m, n, k, ta, tb, beta, lda, ldb, ldc, {}, {}, {}};
  p.a = fill(lda * (ta == Trans::kNo ? m : k));
  p.b = fill(ldb * (tb == Trans::kNo ? k : n));
  p.c = fill(ldc * m);
  if (beta == T{0}) {  // what is not read may be anything
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) p.c[i * ldc + j] = std::numeric_limits<T>::quiet_NaN();
    }
  }
  return p;
}

// Largest distance from the sum in long double, and whether the padding of C is as before.
template <class T, class Product>
double worst_error(Problem<T> p, Product product) {
  const std::vector<T> before = p.c;
  product(p.ta, p.tb, p.m, p.n, p.k, p.a.data(), p.lda, p.b.data(), p.ldb, p.beta, p.c.data(),
          p.ldc);
  double worst = 0.0;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.ldc; ++j) {
      const T was = before[i * p.ldc + j];
      const T is = p.c[i * p.ldc + j];
      if (j >= p.n) {
        if (std::memcmp(&was, &is, sizeof is) != 0) return HUGE_VAL;
        continue;
      }
      long double sum = p.beta == T{0} ? 0.0L : static_cast<long double>(p.beta) * was;
      for (int64_t l = 0; l < p.k; ++l) {
        const T a = p.ta == Trans::kNo ? p.a[i * p.lda + l] : p.a[l * p.lda + i];
        const T b = p.tb == Trans::kNo ? p.b[l * p.ldb + j] : p.b[j * p.ldb + l];
        sum += static_cast<long double>(a) * b;
      }
      const double error = std::fabs(static_cast<double>(static_cast<long double>(is) - sum));
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

template <class T, class Product>
void check_product(Product product) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {4, 16, 8}, {37, 33, 29}, {64, 32, 64}};
  for (const auto& s : sizes) {
    for (const Trans ta : {Trans::kNo, Trans::kYes}) {
      for (const Trans tb : {Trans::kNo, Trans::kYes}) {
        for (const T beta : {T{0}, T{1}}) {
          for (const int64_t pad : {int64_t{0}, int64_t{3}}) {
            CAPTURE(s[0], s[1], s[2], ta == Trans::kYes, tb == Trans::kYes, beta, pad);
            // k + 1 addends below 1, each rounded: (k + 1)^2 / 2 half units in the worst case;
            // the terms' signs vary, so a tenth of it is ample.
            const double terms = double(s[2] + 1);
            const double bound = 0.1 * terms * terms * std::numeric_limits<T>::epsilon() +
                                 4 * std::numeric_limits<T>::epsilon();
            CHECK(worst_error(make<T>(s[0], s[1], s[2], ta, tb, beta, pad), product) <= bound);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("train gemm: every transposition and odd size equals the plain sum", "[unit][train]") {
  SECTION("float") { check_product<float>(gemm<float>); }
  SECTION("float, portable") { check_product<float>(gemm_portable<float>); }
  SECTION("double") { check_product<double>(gemm<double>); }
}

TEST_CASE("train gemm: four threads at once get the bits of one", "[unit][train]") {
  const auto p = make<float>(64, 96, 48, Trans::kNo, Trans::kYes, 1.0f, 0);
  auto run = [&] {
    std::vector<float> c = p.c;
    for (int i = 0; i < 20; ++i) {
      gemm(p.ta, p.tb, p.m, p.n, p.k, p.a.data(), p.lda, p.b.data(), p.ldb, p.beta, c.data(),
           p.ldc);
    }
    return c;
  };
  const std::vector<float> expected = run();
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = run(); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) {
    CHECK(std::memcmp(result.data(), expected.data(), expected.size() * sizeof(float)) == 0);
  }
}
