// The acceptance test of Newton-Schulz in half precision with a GPU's products, on known spectra.

#include <catch2/catch.hpp>
#include <future>

#include "cuda/symmetric/symmetric_cases.hpp"
#include "unit/algo/newton_schulz_cases.hpp"

using namespace muonrt;
using namespace newton_schulz_cases;

namespace {

struct Choice {
  CoefficientFamily family;
  DType dtype;
};

constexpr Choice kAll[] = {{CoefficientFamily::kPolarExpress, DType::kBF16},
                           {CoefficientFamily::kPolarExpress, DType::kF16},
                           {CoefficientFamily::kKellerJordan, DType::kBF16},
                           {CoefficientFamily::kKellerJordan, DType::kF16}};

/// Returns backends with muonrt's kernels, and with the vendor's kernels if they exist.
std::vector<backends::Backend> tuned_backends() {
  std::vector<backends::Backend> list;
  for (const SymmetricProvider own : cuda_test::symmetric_providers())
    list.push_back(backends::cuda(false, own));
  list.push_back(backends::cuda());
  return list;
}

/// Matrices that have the eight spectra and the same singular vectors.
struct Spectra {
  Spectra(int64_t m, int64_t n) {
    reference::Svd svd = reference::random_svd(m, n, {}, 80);
    for (const auto& [name, spectrum] : eight_spectra(m)) {
      svd.s = spectrum;
      names.push_back(name);
      known.push_back(svd);
      batch.push_back(reference::rounded(reference::assemble(svd), DType::kF32));
    }
  }
  std::vector<const char*> names;
  std::vector<reference::Svd> known;
  std::vector<Matrix> batch;
};

/// Checks both forms. The kernels for sm_90a use different tiles for a batch than for one small
/// matrix.
void check(const Spectra& spectra, const Choice& of, bool one_batch) {
  const NewtonSchulz settings =
      make_newton_schulz(of.family, default_settings(of.family), of.dtype);
  for (auto& backend : tuned_backends()) {
    for (const Form form : {Form::kStandard, Form::kGram}) {
      const SpectralTrial trial(settings, form, spectra.batch[0].rows);
      const auto run = [&](const std::vector<Matrix>& batch) {
        return runner::orthogonalize(backend, settings, trial.method, DType::kF32, batch).matrices;
      };
      std::vector<Matrix> results;
      if (one_batch) {
        results = run(spectra.batch);
      } else {
        for (const Matrix& x : spectra.batch) results.push_back(run({x})[0]);
      }
      std::vector<std::future<reference::SpectralError>> errors;
      for (size_t i = 0; i < results.size(); ++i)
        errors.push_back(std::async(
            std::launch::async, [&, i] { return trial.error_of(results[i], spectra.known[i]); }));
      for (size_t i = 0; i < results.size(); ++i) {
        INFO(backend.name << ", " << name_of(of.family) << ", " << name_of(of.dtype)
                          << (form == Form::kGram ? ", gram, " : ", standard, ")
                          << spectra.names[i]);
        const auto e = errors[i].get();
        CHECK(e.diagonal <= trial.diagonal);
        CHECK(e.off_diagonal <= trial.off_diagonal);
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda newton-schulz: each singular value s of eight spectra becomes p(s)", "[cuda]") {
  if (cuda_test::is_emulated()) {  // a hidden case below checks the remaining spectra
    check(Spectra(128, 256), {CoefficientFamily::kPolarExpress, DType::kBF16}, false);
    check(Spectra(128, 160), {CoefficientFamily::kKellerJordan, DType::kF16}, true);
    return;
  }
  const Spectra small(128, 512), large(512, 1024);
  for (const Choice& of : kAll) {
    check(small, of, false);
    check(large, of, true);
  }
}

TEST_CASE("cuda newton-schulz: each s becomes p(s) with both lists in both dtypes", "[.full]") {
  const Spectra spectra(128, 512);
  for (const Choice& of : kAll) check(spectra, of, of.dtype == DType::kBF16);
}
