#include "plan/method.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace muonrt {
namespace {

constexpr int64_t kGramShortSide = 512;

/// The cost of launching a product, in FLOPs; a launch takes about 5 microseconds on one host core.
/// Launches take nearly all the time of tiny matrices. Without this constant, a rank that owns
/// thousands of them could become the slowest.
constexpr double kProductConstant = 1 << 20;

/// The cost of reading or writing one element in a product, in FLOPs. A product with a short side
/// does few FLOPs for each element, so memory bandwidth limits it: on 2 cores, a size of 1024 x
/// 1024 reaches 195 GFLOP/s, but 16 x 65536 reaches only 13 GFLOP/s.
constexpr double kElementConstant = 1 << 8;

struct Shape {
  double m, n;  // short side and long side of the matrix
};

struct Count {
  double square;     // number of products of two m x m matrices with a symmetric result
  double gram;       // number of products X X^T, whose result is symmetric
  double rectangle;  // number of products of an m x m and an m x n matrix
};

Shape shape_of(int64_t rows, int64_t cols) {
  return {static_cast<double>(std::min(rows, cols)), static_cast<double>(std::max(rows, cols))};
}

/// Counts the products. A step of the standard form computes R = X X^T, R R and Z X. A step of the
/// Gram form computes R R, Q Z, R Z and Z Y, which are all m x m. There are two exceptions: the
/// first step after X is recomputed does not need Q Z, and the last step of a segment does not need
/// R Z and Z Y. The k restarts divide the steps into 1 + k segments, each of which also computes
/// one X X^T and one Q X. If every step except the first is a restart, the Gram form computes the
/// same products as the standard form.
Count count_products(const Method& method) {
  const double steps = method.steps;
  if (method.form == Form::kStandard) return {steps, steps, steps};
  const double rebuilds = 1.0 + static_cast<double>(method.restarts.size());
  return {4 * steps - 3 * rebuilds, rebuilds, rebuilds};
}

double product_cost(double flops, double elements) {
  return std::max(flops, kElementConstant * elements) + kProductConstant;
}

}  // namespace

Method choose_method(FormChoice choice, int64_t rows, int64_t cols, int steps,
                     const std::vector<int>& gram_restarts) {
  MUONRT_REQUIRE(rows >= 0 && cols >= 0, Status::kInvalidArgument, "method: shape ", rows, " x ",
                 cols, " is negative; give the global shape");
  MUONRT_REQUIRE(steps >= 1, Status::kInvalidArgument, "method: ", steps,
                 " Newton-Schulz steps are too few; give at least 1");
  Method method;
  method.steps = steps;
  if (choice == FormChoice::kStandard) return method;
  const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
  const bool wide = n - m >= m / 2 + m % 2;  // n / m >= 1.5
  if (choice == FormChoice::kAuto && !(wide && m >= kGramShortSide)) return method;
  method.form = Form::kGram;
  int last = 0;
  for (const int i : gram_restarts) {
    MUONRT_REQUIRE(i > last, Status::kInvalidArgument, "method: Gram restarts ", gram_restarts,
                   " are not ascending from 1; give each step before which X is rebuilt once");
    last = i;
    // Recomputing X after the last step would have no effect.
    if (i < steps) method.restarts.push_back(i);
  }
  return method;
}

std::string method_rule() {
  return cat("gram if long side / short side >= 1.5 and short side >= ", kGramShortSide,
             ", otherwise standard");
}

double orthogonalize_flops(const Method& method, int64_t rows, int64_t cols) {
  const auto [m, n] = shape_of(rows, cols);
  if (m == 0) return 0.0;
  const Count c = count_products(method);
  return c.square * m * m * m + c.gram * m * m * n + c.rectangle * 2 * m * m * n;
}

double orthogonalize_flops_full(const Method& method, int64_t rows, int64_t cols) {
  const auto [m, n] = shape_of(rows, cols);
  if (m == 0) return 0.0;
  const Count c = count_products(method);
  return 2 * (c.square * m * m * m + c.gram * m * m * n + c.rectangle * m * m * n);
}

double orthogonalize_cost(const Method& method, int64_t rows, int64_t cols, int64_t ranks) {
  if (rows == 0 || cols == 0) return 0.0;
  const double m = shape_of(rows, cols).m, n = shape_of(rows, cols).n / static_cast<double>(ranks);
  const Count c = count_products(method);
  return c.square * product_cost(m * m * m, 3 * m * m) +
         c.gram * product_cost(m * m * n, m * n + m * m) +
         c.rectangle * product_cost(2 * m * m * n, m * m + 2 * m * n);
}

std::string cost_rule() {
  return cat("FLOPs, or ", kElementConstant,
             " for each element of a product if that is more, and 2^20 for its launch");
}

}  // namespace muonrt
