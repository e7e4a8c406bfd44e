#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "reference/reference.hpp"
#include "support/numerics/newton_schulz_runner.hpp"
#include "support/tolerances.hpp"

/// Functions that the Newton-Schulz tests share.
namespace newton_schulz_cases {

using muonrt::DType;
using reference::Matrix;

struct Named {
  const char* name;
  reference::List list;
  double safety;
};

inline std::vector<Named> five_step_lists() {
  namespace lists = reference::lists;
  return {{"keller jordan", lists::kKellerJordan, 1.0},
          {"you", lists::kYouJiacheng, 1.0},
          {"polar express", lists::kPolarModded, 1.02},
          {"polar express raw/1.05", lists::kPolarRaw105, 1.0},
          {"cans", {lists::kCans.begin(), lists::kCans.begin() + 5}, 1.02},
          {"cubic", lists::kCubic, 1.02}};
}

/// Returns whether the list is accurate in bf16. CANS has headroom only for its input, so from the
/// second step on it amplifies rounding errors of bf16. On flat spectra, the errors of the results
/// reach 1.
inline bool bf16_stands(const Named& l) { return std::string(l.name) != "cans"; }

inline double near(const Named& l) {
  return tolerance::newton_schulz_f32(reference::gain(l.list, l.safety));
}

/// Returns the matrix with its short side first, as the pipeline stores it.
inline Matrix upright(const Matrix& a) { return a.rows <= a.cols ? a : reference::transpose(a); }

/// Returns spectra of k singular values, modeled on the stress tests of
/// Dao-AILab/gram-newton-schulz.
inline std::vector<std::pair<const char*, std::vector<double>>> eight_spectra(int64_t k) {
  const auto log_to = [k](double last) {
    std::vector<double> s;
    for (int64_t i = 0; i < k; ++i)
      s.push_back(std::pow(last, static_cast<double>(i) / static_cast<double>(k - 1)));
    return s;
  };
  std::vector<double> flat, ten(static_cast<size_t>(k), 0.0), tail, normal;
  for (int64_t i = 0; i < k; ++i) {
    const double at = static_cast<double>(i) / static_cast<double>(k - 1);
    flat.push_back(1 - 0.5 * at);
    if (i < 10) ten[static_cast<size_t>(i)] = 1;
    tail.push_back(i < 2 ? 1.0 : 1e-4 * std::pow(1e-3, at));
    normal.push_back(1.5 - at);
  }
  return {{"flat", flat},
          {"log to 1e-2", log_to(1e-2)},
          {"log to 1e-3", log_to(1e-3)},
          {"log to 1e-5", log_to(1e-5)},
          {"log to 1e-9", log_to(1e-9)},
          {"rank ten", ten},
          {"two big", tail},
          {"gaussian-like", normal}};
}

inline Matrix standard(backends::Backend& backend, const Named& l, DType iteration, DType transport,
                       const Matrix& x) {
  return runner::orthogonalize(backend, runner::settings_of(l.list, l.safety, iteration),
                               runner::standard(l.list), transport, x);
}

inline muonrt::Method method_of(const muonrt::NewtonSchulz& made, muonrt::Form form) {
  const auto steps = static_cast<int>(made.list_of(form).steps.size());
  return {form, steps, form == muonrt::Form::kGram ? made.gram_restarts : std::vector<int>{}};
}

/// A form of Newton-Schulz with its settings, the coefficients for the reference implementation,
/// and the tolerances from tests/support/tolerances.hpp.
struct SpectralTrial {
  SpectralTrial(const muonrt::NewtonSchulz& made, muonrt::Form form, int64_t m)
      : method(method_of(made, form)) {
    const muonrt::CoefficientList& used = made.list_of(form);
    for (const auto& step : used.steps) list.push_back({step.a, step.b, step.c});
    safety = used.input_safety;
    const bool gram = form == muonrt::Form::kGram;
    const double gain = reference::gain(list, safety);
    diagonal = tolerance::acceptance(made.iteration_of(form), gram, gain, m);
    off_diagonal = tolerance::spectral(made.iteration_of(form), gram, gain);
  }
  reference::SpectralError error_of(const Matrix& o, const reference::Svd& known) const {
    return reference::spectral_error(o, known, list, safety);
  }

  muonrt::Method method;
  reference::List list;
  double safety, diagonal, off_diagonal;
};

}  // namespace newton_schulz_cases
