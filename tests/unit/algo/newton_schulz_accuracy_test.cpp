#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "newton_schulz_cases.hpp"
#include "support/catalogue.hpp"

using namespace muonrt;
using namespace newton_schulz_cases;
namespace lists = textbook::lists;

TEST_CASE("newton-schulz: equals the textbook over the catalogue of shapes",
          "[unit][newton-schulz]") {
  auto backends = backends::all();
  for (const auto& shape : catalogue::kShapes) {
    const Matrix x = upright(textbook::gaussian(shape.rows, shape.cols, 31));
    for (const Named& l : five_step_lists()) {
      for (const DType transport : {DType::kF32, DType::kBF16}) {
        const Matrix in = textbook::rounded(x, transport);
        const Matrix expected = textbook::newton_schulz(l.list, l.safety, in);
        for (auto& backend : backends) {
          if (backend.slow && x.rows > 32) continue;
          INFO(backend.name << ", " << l.name << ", " << shape.rows << " x " << shape.cols);
          const Matrix f32 = standard(backend, l, DType::kF32, transport, in);
          CHECK(textbook::max_difference(f32, expected) <= near(l));
          if (!bf16_stands(l)) continue;
          const Matrix bf16 = standard(backend, l, DType::kBF16, transport, in);
          CHECK(textbook::max_difference(bf16, expected) <= tolerance::newton_schulz_bf16(x.rows));
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: singular values go where p sends them, over eight spectra",
          "[unit][newton-schulz][nosan]") {
  auto backend = backends::host(1);
  const int64_t m = 128, n = 256;
  for (const auto& [name, spectrum] : eight_spectra(m)) {
    const auto known = textbook::random_svd(m, n, spectrum, 77);
    const Matrix x = textbook::rounded(textbook::assemble(known), DType::kF32);
    for (const Named& l : five_step_lists()) {
      INFO(l.name << ", " << name);
      const auto f32 = textbook::spectral_error(standard(backend, l, DType::kF32, DType::kF32, x),
                                                known, l.list, l.safety);
      CHECK(f32.diagonal <= near(l));
      CHECK(f32.off_diagonal <= near(l));
      if (!bf16_stands(l)) continue;
      const auto bf16 = textbook::spectral_error(standard(backend, l, DType::kBF16, DType::kF32, x),
                                                 known, l.list, l.safety);
      CHECK(bf16.diagonal <= tolerance::kSpectralBf16);
      CHECK(bf16.off_diagonal <= tolerance::kSpectralBf16);
    }
  }
}

TEST_CASE("newton-schulz: the Gram form does what its list says under its searched restarts",
          "[unit][newton-schulz][nosan]") {
  auto backend = backends::host(1);
  const int64_t m = 128, n = 256;
  for (const auto& [name, spectrum] : eight_spectra(m)) {
    const auto known = textbook::random_svd(m, n, spectrum, 78);
    const Matrix x = textbook::rounded(textbook::assemble(known), DType::kF32);
    for (const auto family : {CoefficientFamily::kPolarExpress, CoefficientFamily::kKellerJordan,
                              CoefficientFamily::kYouJiacheng, CoefficientFamily::kCans}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        INFO(name_of(family) << ", " << name << ", " << name_of(dtype));
        const auto settings = make_newton_schulz(family, default_settings(family), dtype);
        textbook::List list;
        for (const auto& step : settings.gram_list.steps) list.push_back({step.a, step.b, step.c});
        const double safety = settings.gram_list.input_safety;
        const Matrix o = runner::orthogonalize(
            backend, settings, runner::gram(list, settings.gram_restarts), DType::kF32, x);
        const auto e = textbook::spectral_error(o, known, list, safety);
        const double allowed = dtype == DType::kF32
                                   ? tolerance::gram_f32(textbook::gain(list, safety))
                                   : tolerance::kSpectralGramBf16;
        CHECK(e.diagonal <= allowed);
        CHECK(e.off_diagonal <= allowed);
      }
    }
  }
}

TEST_CASE("newton-schulz: the Gram form equals its textbook on every backend, whatever restarts",
          "[unit][newton-schulz]") {
  for (auto& backend : backends::all()) {
    for (const Named& l : five_step_lists()) {
      for (const std::vector<int>& restarts :
           {std::vector<int>{}, {1}, {2}, {4}, {1, 3}, {2, 3}, {1, 2, 3, 4}}) {
        for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 5}, {9, 9}, {13, 40}}) {
          INFO(backend.name << ", " << l.name << ", " << m << " x " << n << ", " << restarts.size()
                            << " restarts");
          const Matrix x = textbook::rounded(textbook::gaussian(m, n, 41), DType::kBF16);
          const Matrix o =
              runner::orthogonalize(backend, runner::settings_of(l.list, l.safety, DType::kF32),
                                    runner::gram(l.list, restarts), DType::kBF16, x);
          const Matrix expected = textbook::newton_schulz_gram(l.list, restarts, l.safety, x);
          CHECK(textbook::max_difference(o, expected) <=
                tolerance::gram_f32(textbook::gain(l.list, l.safety)));
          CHECK(textbook::max_difference(expected, textbook::newton_schulz(l.list, l.safety, x)) <=
                1e-9);
        }
      }
    }
  }
}

TEST_CASE("newton-schulz: with a restart before every step the Gram form is the standard form",
          "[unit][newton-schulz]") {
  const Matrix x = textbook::rounded(textbook::gaussian(19, 45, 9), DType::kF32);
  for (auto& backend : backends::all()) {
    for (const DType iteration : {DType::kF32, DType::kBF16}) {
      const auto& list = lists::kYouJiacheng;
      const auto settings = runner::settings_of(list, 1.0, iteration);
      INFO(backend.name);
      CHECK(runner::same_bits(
          runner::orthogonalize(backend, settings, runner::standard(list), DType::kF32, x),
          runner::orthogonalize(backend, settings, runner::gram(list, {1, 2, 3, 4}), DType::kF32,
                                x)));
    }
  }
}

TEST_CASE("newton-schulz: results are finite and near orthogonal over the catalogue",
          "[unit][newton-schulz]") {
  auto backend = backends::host(2);
  for (const auto family : {CoefficientFamily::kPolarExpress, CoefficientFamily::kKellerJordan,
                            CoefficientFamily::kYouJiacheng, CoefficientFamily::kCans}) {
    for (const DType iteration : {DType::kF32, DType::kBF16}) {
      if (family == CoefficientFamily::kCans && iteration == DType::kBF16) continue;
      const auto settings = make_newton_schulz(family, default_settings(family), iteration);
      for (const FormChoice form : {FormChoice::kStandard, FormChoice::kGram}) {
        for (const auto& shape : catalogue::kShapes) {
          INFO(name_of(family) << ", " << name_of(iteration) << ", " << shape.rows << " x "
                               << shape.cols);
          const Matrix x =
              textbook::rounded(upright(textbook::values(9, shape.rows, shape.cols)), DType::kBF16);
          const Method method = choose_method(form, x.rows, x.cols, 5, settings.gram_restarts);
          const Matrix o = runner::orthogonalize(backend, settings, method, DType::kBF16, x);
          CHECK(textbook::all_finite(o));
          const double quality = textbook::frobenius(o) / std::sqrt(static_cast<double>(x.rows));
          CHECK(quality >= 0.6);
          CHECK(quality <= 1.25);
        }
      }
    }
  }
}
