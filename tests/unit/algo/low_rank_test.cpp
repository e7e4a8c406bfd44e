// The Gram form in half precision, in the spectral norm, on every rank.

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "algo/restarts.hpp"
#include "algo/rounding.hpp"
#include "newton_schulz_cases.hpp"

using namespace muonrt;
using namespace newton_schulz_cases;

namespace {

constexpr int64_t kRows = 64, kCols = 128;

/// Largest singular value of a - b, by power iteration: a lower bound that is close.
double spectral_distance(const Matrix& a, const Matrix& b) {
  const Matrix d = textbook::add(1, a, -1, b);
  std::vector<double> v(static_cast<size_t>(d.cols)), w(static_cast<size_t>(d.rows));
  for (size_t j = 0; j < v.size(); ++j) v[j] = 1 + 0.3 * std::sin(static_cast<double>(j * j));
  double norm = 0;
  for (int round = 0; round < 60; ++round) {
    for (int64_t i = 0; i < d.rows; ++i) {
      w[static_cast<size_t>(i)] = 0;
      for (int64_t j = 0; j < d.cols; ++j)
        w[static_cast<size_t>(i)] += d(i, j) * v[static_cast<size_t>(j)];
    }
    std::fill(v.begin(), v.end(), 0.0);
    for (int64_t i = 0; i < d.rows; ++i)
      for (int64_t j = 0; j < d.cols; ++j)
        v[static_cast<size_t>(j)] += d(i, j) * w[static_cast<size_t>(i)];
    double squares = 0;
    for (const double x : v) squares += x * x;
    norm = std::sqrt(squares);
    if (!(norm > 0)) return norm;
    for (double& x : v) x /= norm;
  }
  return std::sqrt(norm);
}

/// Ranks from one to full, with singular values that are equal or spread over decades, and two
/// levels.
std::vector<std::vector<double>> spectra() {
  std::vector<std::vector<double>> out;
  for (const int64_t rank : {int64_t{1}, kRows / 8, kRows / 2, 3 * kRows / 4, kRows}) {
    for (const double last : {1.0, 0.1, 1e-3}) {
      if (rank == 1 && last < 1) continue;
      std::vector<double> s(kRows, 0.0);
      for (int64_t i = 0; i < rank; ++i)
        s[static_cast<size_t>(i)] =
            rank == 1 ? 1 : std::pow(last, static_cast<double>(i) / static_cast<double>(rank - 1));
      out.push_back(s);
    }
  }
  for (const double low : {0.1, 0.03, 0.01}) {
    std::vector<double> s(kRows, low);
    std::fill(s.begin(), s.begin() + kRows / 4, 1.0);
    out.push_back(s);
  }
  return out;
}

struct Known {
  Matrix x;
  textbook::Svd svd;
};

std::vector<Known> known_matrices() {
  std::vector<Known> out;
  textbook::Svd svd = textbook::random_svd(kRows, kCols, {}, 81);
  for (const auto& spectrum : spectra()) {
    svd.s = spectrum;
    out.push_back({textbook::rounded(textbook::assemble(svd), DType::kF32), svd});
  }
  return out;
}

/// Error of one form against its own list in float64.
double error_of(backends::Backend& backend, const NewtonSchulz& settings, Form form,
                const Known& known) {
  const SpectralTrial trial(settings, form, kRows);
  textbook::Svd exact = known.svd;
  double norm = 0;
  for (const double s : exact.s) norm += s * s;
  for (double& s : exact.s) s = textbook::compose(trial.list, s / (trial.safety * std::sqrt(norm)));
  return spectral_distance(
      runner::orthogonalize(backend, settings, trial.method, DType::kF32, known.x),
      textbook::assemble(exact));
}

/// @param rows  divides the input as the norm of a matrix of that many rows and equal rank would.
NewtonSchulz made(CoefficientFamily family, int steps, DType gram, double rows = kRows) {
  NewtonSchulzOptions options;
  options.gram_iteration = gram;
  NewtonSchulz out =
      make_newton_schulz(family, default_settings(family, steps), DType::kBF16, options);
  out.list.input_safety *= std::sqrt(rows / kRows);
  out.gram_list.input_safety *= std::sqrt(rows / kRows);
  return out;
}

}  // namespace

TEST_CASE("low rank: the Gram form is never less accurate than the standard form in bf16",
          "[unit][newton-schulz][nosan]") {
  auto backend = backends::host(1);
  const std::vector<Known> matrices = known_matrices();
  struct Row {
    CoefficientFamily family;
    int first, last;
  };
  const Row rows[] = {
      {CoefficientFamily::kPolarExpress, 3, 12}, {CoefficientFamily::kKellerJordan, 3, 12},
      {CoefficientFamily::kYouJiacheng, 5, 5},   {CoefficientFamily::kDeepSeekV4, 9, 12},
      {CoefficientFamily::kCubic, 5, 5},         {CoefficientFamily::kClassical, 3, 12}};
  int gram_forms = 0;
  for (const Row& row : rows) {
    for (int steps = row.first; steps <= row.last; ++steps) {
      // 512 rows: the fewest with which `auto` takes the Gram form.
      const NewtonSchulz f16 = made(row.family, steps, DType::kF16, 512);
      const NewtonSchulz bf16 = made(row.family, steps, DType::kBF16, 512);
      // A restart before every step: the standard form in f16.
      if (std::ssize(f16.gram_restarts) == steps - 1) continue;
      ++gram_forms;
      for (size_t k = 0; k < matrices.size(); ++k) {
        INFO(name_of(row.family) << ", " << steps << " steps, spectrum " << k);
        const double standard = error_of(backend, bf16, Form::kStandard, matrices[k]);
        CHECK(error_of(backend, f16, Form::kGram, matrices[k]) <= standard);
        CHECK(error_of(backend, bf16, Form::kGram, matrices[k]) <= standard);
      }
    }
  }
  CHECK(gram_forms >= 20);
}

TEST_CASE("low rank: emulated errors are what the search predicts", "[unit][restarts][nosan]") {
  auto backend = backends::host(1);
  textbook::Svd svd = textbook::random_svd(kRows, kCols, {}, 82);
  for (const int high : {1, 16, 32, 48}) {
    for (const double low : {0.0, 0.01, 0.1}) {
      svd.s.assign(kRows, low);
      std::fill(svd.s.begin(), svd.s.begin() + high, 1.0);
      const Known known{textbook::rounded(textbook::assemble(svd), DType::kF32), svd};
      const double norm = std::sqrt(high + (kRows - high) * low * low);
      const TwoLevels levels = {1 / norm, low / norm, high / static_cast<double>(kRows)};
      for (const std::vector<int>& restarts : {std::vector<int>{2}, {1, 3}, {2, 3}, {1, 2, 3, 4}}) {
        NewtonSchulz settings = made(CoefficientFamily::kPolarExpress, 5, DType::kF16);
        settings.gram_restarts = restarts;
        const double predicted = predicted_error(settings.gram_list, restarts, DType::kF16, levels);
        INFO(high << " high, low " << low << ", " << restarts.size() << " restarts from "
                  << restarts[0]);
        const double error = error_of(backend, settings, Form::kGram, known);
        CHECK(error <= 1.7 * predicted);
        CHECK(error >= 0.4 * predicted);
      }
    }
  }
}
