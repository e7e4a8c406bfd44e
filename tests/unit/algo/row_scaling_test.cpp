#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "newton_schulz_cases.hpp"
#include "support/catalogue.hpp"

// AOL on rows of very unequal size, in the dtypes whose Gram matrix loses the small ones.

using namespace muonrt;
using namespace newton_schulz_cases;

namespace {

/// An ordinary row, and m - 1 parallel ones `ratio` times as large.
Matrix one_large_row(int64_t m, int64_t n, double ratio) {
  Matrix x = textbook::gaussian(m, n, 31);
  for (int64_t i = 1; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      x(i, j) = ratio * (i == 1 ? x(1, j) : x(1, j) / ratio * (i % 2 ? 1.0 : -1.0));
  return x;
}

double largest(const Matrix& x) { return textbook::svd(x).s.front(); }

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

TEST_CASE("aol: small rows beside a large one are the textbook's in every dtype",
          "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  for (const CoefficientFamily family : kScaledFamilies) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const NewtonSchulz settings = scaled_rows(family, dtype, Normalize::kPrescaled, 0);
      for (const Form form : {Form::kStandard, Form::kGram}) {
        // There bf16 rounds in the null directions by as much as the result has.
        if (form == Form::kGram && dtype == DType::kBF16) continue;
        const CoefficientList& used = settings.list_of(form);
        const double most = image_range(used, 0, kReach).high;
        for (const double ratio : {1e-1, 3e-3, 1e-3, 3e-4, 1.5e-4, 1e-4, 1e-6}) {
          for (const auto& [m, n] : {std::pair<int64_t, int64_t>{32, 48}, {120, 130}}) {
            if (m > 32 && (ratio != 1e-6 || dtype != DType::kF16)) continue;
            INFO(name_of(family) << ", " << name_of(dtype)
                                 << (form == Form::kGram ? ", gram, " : ", standard, ") << m
                                 << " x " << n << ", ratio " << ratio);
            const Matrix x = textbook::rounded(one_large_row(m, n, ratio), DType::kF32);
            const Matrix o =
                runner::orthogonalize(backend, settings, method_of(settings, form), DType::kF32, x);
            REQUIRE(textbook::all_finite(o));
            CHECK(largest(o) <= 1.05 * most);
            if (ratio < 3e-3) continue;  // below, sums reach what counts as zero
            // bf16 rounds rows and products by 2^-8 each; what the list makes of values that far
            // off is a range.
            const double off = dtype == DType::kBF16 ? 0x1p-6 : 0x1p-9;
            CoefficientList bare = used;
            bare.input_safety = 1;
            Range range{0, 0};
            for (const double sigma :
                 textbook::svd(textbook::aol_scaled(used.input_safety,
                                                    textbook::scale(1 / textbook::frobenius(x), x)))
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
            INFO(name_of(family) << ", " << name_of(dtype) << ", " << name_of(normalize) << ", eps "
                                 << eps << ", norm " << norm << " of it");
            Matrix x = textbook::gaussian(24, 40, 5);
            x = textbook::rounded(textbook::scale(norm * eps / textbook::frobenius(x), x),
                                  DType::kF32);
            const Matrix o = runner::orthogonalize(
                backend, settings, method_of(settings, Form::kStandard), DType::kF32, x);
            REQUIRE(textbook::all_finite(o));
            CHECK(largest(o) <= 1.05 * most);
          }
        }
      }
    }
  }
}

TEST_CASE("lists: without headroom between their steps they are refused in half precision",
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
