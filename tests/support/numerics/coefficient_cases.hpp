#pragma once

#include "algo/coefficients.hpp"
#include "reference/reference.hpp"

/// Coefficient lists and settings for tests.
namespace cases {

/// Converts a coefficient list of the reference implementation to one of the library.
inline muonrt::CoefficientList as_is(const reference::List& list, double safety = 1.0) {
  muonrt::CoefficientList out;
  for (const auto& t : list) out.steps.push_back({t.a, t.b, t.c});
  out.input_safety = safety;
  return out;
}

inline muonrt::CoefficientSettings polar(int steps, double cushion, double safety,
                                         muonrt::SafetyMode mode = muonrt::SafetyMode::kInner) {
  auto s = muonrt::default_settings(muonrt::CoefficientFamily::kPolarExpress, steps);
  s.cushion = cushion;
  s.safety = safety;
  s.mode = mode;
  return s;
}

}  // namespace cases
