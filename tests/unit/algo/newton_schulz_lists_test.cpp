#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "base/error.hpp"
#include "newton_schulz_cases.hpp"
#include "support/catalogue.hpp"

// Tests every coefficient list in every dtype and form with the host's kernels.

using namespace muonrt;
using namespace newton_schulz_cases;

namespace {

struct Made {
  std::string name;
  CoefficientFamily family;
  CoefficientSettings settings;
};

/// Returns the published list of every family, and the presets of Polar Express.
std::vector<Made> every_list() {
  std::vector<Made> out;
  for (const CoefficientFamily family : coefficient_families()) {
    if (family != CoefficientFamily::kCustom)
      out.push_back({name_of(family), family, default_settings(family)});
  }
  Made accurate = {"accurate", CoefficientFamily::kPolarExpress,
                   default_settings(CoefficientFamily::kPolarExpress, 7)};
  Made motif = {"motif", CoefficientFamily::kPolarExpress,
                default_settings(CoefficientFamily::kPolarExpress, 10)};
  motif.settings.safety = 1.01;
  Made cans = {"cans, inner", CoefficientFamily::kCans, default_settings(CoefficientFamily::kCans)};
  cans.settings.mode = SafetyMode::kInner;
  out.insert(out.end(), {accurate, motif, cans});
  return out;
}

}  // namespace

TEST_CASE("lists: singular values are mapped by p, for every list, dtype and form",
          "[unit][newton-schulz][nosan]") {
  auto backend = backends::host(1);
  const int64_t m = 128, n = 256;
  for (const auto& [name, spectrum] : eight_spectra(m)) {
    const auto known = reference::random_svd(m, n, spectrum, 79);
    const Matrix x = reference::rounded(reference::assemble(known), DType::kF32);
    for (const Made& made : every_list()) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const NewtonSchulz settings = make_newton_schulz(made.family, made.settings, dtype);
        for (const Form form : {Form::kStandard, Form::kGram}) {
          const SpectralTrial trial(settings, form, m);
          // If rounding errors reach the size of the result, null directions cannot be checked.
          if (trial.off_diagonal > 0.5) continue;
          INFO(made.name << ", " << name << ", " << name_of(dtype)
                         << (form == Form::kGram ? ", gram" : "") << ", allowed "
                         << trial.off_diagonal);
          const auto e = trial.error_of(
              runner::orthogonalize(backend, settings, trial.method, DType::kF32, x), known);
          CHECK(e.diagonal <= trial.diagonal);
          CHECK(e.off_diagonal <= trial.off_diagonal);
        }
      }
    }
  }
}

TEST_CASE("lists: auto chooses the Gram form only if it has fewer restarts",
          "[unit][newton-schulz]") {
  int standard = 0;
  for (const Made& made : every_list()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(made.name << ", " << name_of(dtype));
      const NewtonSchulz settings = make_newton_schulz(made.family, made.settings, dtype);
      const bool fewer = settings.gram_restarts.size() + 1 < settings.gram_list.steps.size();
      if (dtype == DType::kF32) CHECK(fewer);
      standard += !fewer;
      CHECK(permitted_form(settings, FormChoice::kGram) == FormChoice::kGram);
      CHECK(permitted_form(settings, FormChoice::kStandard) == FormChoice::kStandard);
      CHECK(permitted_form(settings, FormChoice::kAuto) ==
            (fewer ? FormChoice::kAuto : FormChoice::kStandard));
    }
  }
  CHECK(standard > 0);
}

TEST_CASE("lists: the caller's restarts are accepted if they bound Q, otherwise rejected",
          "[unit][newton-schulz]") {
  const auto family = CoefficientFamily::kPolarExpress;
  NewtonSchulzOptions options;
  options.restarts = std::vector<int>{1, 3};
  CHECK(make_newton_schulz(family, default_settings(family), DType::kBF16, options).gram_restarts ==
        std::vector<int>{1, 3});
  // Without a restart, the condition number exceeds 1e12 (see restarts_test.cpp).
  options.restarts = std::vector<int>{};
  CHECK_THROWS_WITH(make_newton_schulz(family, default_settings(family), DType::kF16, options),
                    Catch::Contains("restarts []") && Catch::Contains("f16"));
}

TEST_CASE("lists: robust inputs give finite results of the right size", "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  const auto inputs = [](int64_t m, int64_t n) {
    std::vector<std::pair<std::string, Matrix>> out;
    const Matrix g = reference::gaussian(m, n, 12);
    out.emplace_back("zero", Matrix(m, n));
    Matrix rank_one(m, n), row = g, tiny = g, huge = g;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) rank_one(i, j) = g(i, 0) * g(0, j);
    for (int64_t j = 0; j < n; ++j) row(m / 2, j) = 0;
    for (double& v : tiny.v) v *= 1e-30;
    for (double& v : huge.v) v *= 1e30;
    out.emplace_back("rank one", rank_one);
    out.emplace_back("a zero row", row);
    out.emplace_back("norm 1e-30", tiny);
    out.emplace_back("norm 1e30", huge);
    return out;
  };
  for (const Made& made : every_list()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const RowScaling scaling : {RowScaling::kNone, RowScaling::kAol}) {
        NewtonSchulzOptions options;
        options.row_scaling = scaling;
        const NewtonSchulz settings =
            make_newton_schulz(made.family, made.settings, dtype, options);
        for (const Form form : {Form::kStandard, Form::kGram}) {
          const CoefficientList& used = settings.list_of(form);
          const double most = image_range(used, 0, kReach).high;
          for (const auto& [m, n] :
               {std::pair<int64_t, int64_t>{1, 1}, {1, 40}, {16, 40}, {24, 24}}) {
            for (const auto& [what, in] : inputs(m, n)) {
              INFO(made.name << ", " << name_of(dtype) << ", "
                             << "row scaling " << static_cast<int>(scaling)
                             << (form == Form::kGram ? ", gram, " : ", standard, ") << what << ", "
                             << m << " x " << n);
              const Matrix o =
                  runner::orthogonalize(backend, settings, method_of(settings, form), DType::kF32,
                                        reference::rounded(in, DType::kF32));
              CHECK(reference::all_finite(o));
              const double size = reference::frobenius(o);
              if (reference::frobenius(in) == 0) {
                CHECK(size == 0);
              } else {
                CHECK(size > 0.1);
                // Singular values are at most the largest image of the list, plus the noise of half
                // precision.
                CHECK(size <= 1.3 * most * std::sqrt(static_cast<double>(m)) + 0.1);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("aol: the scaled rows equal the reference, and no singular value exceeds 1",
          "[unit][newton-schulz]") {
  const auto family = CoefficientFamily::kAol;
  NewtonSchulzOptions options;
  options.row_scaling = RowScaling::kAol;
  const NewtonSchulz settings =
      make_newton_schulz(family, default_settings(family), DType::kF32, options);
  const reference::List list = reference::lists::kAolFlash;
  for (auto& backend : backends::all()) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 33}, {9, 21}, {20, 20}, {24, 90}}) {
      INFO(backend.name << ", " << m << " x " << n);
      Matrix x = reference::gaussian(m, n, 8);
      for (int64_t i = 0; i < m; ++i)  // gives the rows very different norms
        for (int64_t j = 0; j < n; ++j) x(i, j) *= std::pow(0.7, i);
      x = reference::rounded(x, DType::kF32);
      const Matrix scaled = reference::aol_scaled(1.0, x);
      CHECK(reference::svd(scaled).s.front() <= 1 + 1e-12);
      const Matrix expected = reference::newton_schulz_steps(list, scaled);
      const Matrix o = runner::orthogonalize(backend, settings,
                                             method_of(settings, Form::kStandard), DType::kF32, x);
      CHECK(reference::max_difference(o, expected) <=
            4 * tolerance::newton_schulz_f32(reference::gain(list, 1.0)));
      // The results with and without row scaling differ by more than the tolerance.
      if (m > 1)
        CHECK(reference::max_difference(reference::newton_schulz(list, 1.0, x), expected) > 1e-3);
    }
  }
}

// The following cases test AOL on rows with very different norms. The dtypes cannot represent the
// entries of small rows in the Gram matrix.

namespace {

/// Returns a matrix with one large row and m - 1 parallel rows whose norm is `ratio` times as
/// large.
Matrix one_large_row(int64_t m, int64_t n, double ratio) {
  Matrix x = reference::gaussian(m, n, 31);
  for (int64_t i = 1; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      x(i, j) = ratio * (i == 1 ? x(1, j) : x(1, j) / ratio * (i % 2 ? 1.0 : -1.0));
  return x;
}

double largest(const Matrix& x) { return reference::svd(x).s.front(); }

NewtonSchulz scaled_rows(CoefficientFamily family, DType dtype, Normalize normalize, double eps) {
  NewtonSchulzOptions options;
  options.row_scaling = RowScaling::kAol;
  options.normalize = normalize;
  options.normalize_eps = eps;
  return make_newton_schulz(family, default_settings(family), dtype, options);
}

constexpr CoefficientFamily kScaledFamilies[] = {
    CoefficientFamily::kAol, CoefficientFamily::kPolarExpress, CoefficientFamily::kKellerJordan};

}  // namespace

TEST_CASE("aol: small rows together with a large one equal the reference in every dtype",
          "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  for (const CoefficientFamily family : kScaledFamilies) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const NewtonSchulz settings = scaled_rows(family, dtype, Normalize::kPrescaled, 0);
      for (const Form form : {Form::kStandard, Form::kGram}) {
        // In null directions, the rounding error of bf16 is as large as the result.
        if (form == Form::kGram && dtype == DType::kBF16) continue;
        const CoefficientList& used = settings.list_of(form);
        const double most = image_range(used, 0, kReach).high;
        for (const double ratio : {1e-1, 3e-3, 1e-3, 3e-4, 1.5e-4, 1e-4, 1e-6}) {
          for (const auto& [m, n] : {std::pair<int64_t, int64_t>{32, 48}, {120, 130}}) {
            if (m > 32 && (ratio != 1e-6 || dtype != DType::kF16)) continue;
            INFO(name_of(family) << ", " << name_of(dtype)
                                 << (form == Form::kGram ? ", gram, " : ", standard, ") << m
                                 << " x " << n << ", ratio " << ratio);
            const Matrix x = reference::rounded(one_large_row(m, n, ratio), DType::kF32);
            const Matrix o =
                runner::orthogonalize(backend, settings, method_of(settings, form), DType::kF32, x);
            REQUIRE(reference::all_finite(o));
            CHECK(largest(o) <= 1.05 * most);
            if (ratio < 3e-3) continue;  // for smaller ratios, row sums are treated as zero
            // bf16 rounds rows and products with a relative error of 2^-8 each, so the test accepts
            // the images of a range of singular values.
            const double off = dtype == DType::kBF16 ? 0x1p-6 : 0x1p-9;
            CoefficientList bare = used;
            bare.input_safety = 1;
            Range range{0, 0};
            for (const double sigma :
                 reference::svd(
                     reference::aol_scaled(used.input_safety,
                                           reference::scale(1 / reference::frobenius(x), x)))
                     .s) {
              const Range images = image_range(bare, sigma * (1 - off), sigma * (1 + off));
              range = {std::max(range.low, images.low), std::max(range.high, images.high)};
            }
            CHECK(largest(o) >= range.low - 0.03);
            CHECK(largest(o) <= range.high + 0.03);
          }
        }
      }
    }
  }
}

TEST_CASE("aol: matrices far below eps stay bounded in every dtype", "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  for (const CoefficientFamily family : kScaledFamilies) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Normalize normalize : {Normalize::kAddEps, Normalize::kMaxEps}) {
        for (const double eps : {1e-7, 1e-3, 1.0}) {
          const NewtonSchulz settings = scaled_rows(family, dtype, normalize, eps);
          const CoefficientList& used = settings.list_of(Form::kStandard);
          const double most = image_range(used, 0, kReach).high;
          for (const double norm : {1.0, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8}) {
            INFO(name_of(family) << ", " << name_of(dtype) << ", "
                                 << "normalization " << static_cast<int>(normalize) << ", eps "
                                 << eps << ", norm " << norm << " of it");
            Matrix x = reference::gaussian(24, 40, 5);
            x = reference::rounded(reference::scale(norm * eps / reference::frobenius(x), x),
                                   DType::kF32);
            const Matrix o = runner::orthogonalize(
                backend, settings, method_of(settings, Form::kStandard), DType::kF32, x);
            REQUIRE(reference::all_finite(o));
            CHECK(largest(o) <= 1.05 * most);
          }
        }
      }
    }
  }
}

TEST_CASE("lists: half precision rejects lists without headroom between steps",
          "[unit][newton-schulz]") {
  for (const CoefficientFamily family : coefficient_families()) {
    if (family == CoefficientFamily::kCustom) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(name_of(family) << ", " << name_of(dtype));
      const NewtonSchulz published = make_newton_schulz(family, default_settings(family), dtype);
      CHECK(has_headroom(published.list, dtype));
      CHECK_NOTHROW(permitted_form(published, FormChoice::kAuto));
      const bool generated =
          family == CoefficientFamily::kPolarExpress || family == CoefficientFamily::kCans;
      if (!generated) continue;
      for (const int steps : {4, 5, 7}) {
        CoefficientSettings bare = default_settings(family, steps);
        bare.mode = SafetyMode::kNone;
        NewtonSchulzOptions options;
        options.mode_chosen = true;
        const NewtonSchulz settings = make_newton_schulz(family, bare, dtype, options);
        if (dtype == DType::kF32) {
          CHECK_NOTHROW(permitted_form(settings, FormChoice::kStandard));
          continue;
        }
        for (const FormChoice wish : {FormChoice::kAuto, FormChoice::kStandard, FormChoice::kGram})
          CHECK_THROWS_WITH(
              permitted_form(settings, wish),
              Catch::Contains("no headroom between its steps") && Catch::Contains(name_of(dtype)));
      }
    }
  }
}
