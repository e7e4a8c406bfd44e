#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/newton_schulz_runner.hpp"
#include "support/textbook.hpp"
#include "support/tolerances.hpp"

/// What the tests of Newton-Schulz share.
namespace newton_schulz_cases {

using muonrt::DType;
using textbook::Matrix;

struct Named {
  const char* name;
  textbook::List list;
  double safety;
};

inline std::vector<Named> five_step_lists() {
  namespace lists = textbook::lists;
  return {{"keller jordan", lists::kKellerJordan, 1.0},
          {"you", lists::kYouJiacheng, 1.0},
          {"polar express", lists::kPolarModded, 1.02},
          {"polar express raw/1.05", lists::kPolarRaw105, 1.0},
          {"cans", {lists::kCans.begin(), lists::kCans.begin() + 5}, 1.02},
          {"cubic", lists::kCubic, 1.02}};
}

/// CANS has no headroom past its input factor: from its second step on, roundings of bf16 grow, and
/// results are off by up to 1 (measured on flat spectra).
inline bool bf16_stands(const Named& l) { return std::string(l.name) != "cans"; }

inline double near(const Named& l) {
  return tolerance::newton_schulz_f32(textbook::gain(l.list, l.safety));
}

/// Short side first, as the pipeline stores it.
inline Matrix upright(const Matrix& a) { return a.rows <= a.cols ? a : textbook::transpose(a); }

inline Matrix standard(backends::Backend& backend, const Named& l, DType iteration, DType transport,
                       const Matrix& x) {
  return runner::orthogonalize(backend, runner::settings_of(l.list, l.safety, iteration),
                               runner::standard(l.list), transport, x);
}

}  // namespace newton_schulz_cases
