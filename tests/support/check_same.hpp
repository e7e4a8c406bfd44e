#pragma once

#include <catch2/catch.hpp>

#include "support/world.hpp"

namespace world {

/// Checks that the parameters and state after the run are bitwise identical to `expected`, and that
/// every step orthogonalized all planned matrices.
inline void check_same(const Case& c, const Outcome& outcome, const Tensors& expected) {
  for (size_t i = 0; i < c.params.size(); ++i) {
    INFO(c.params[i].name);
    CHECK((outcome.tensors.params[i] == expected.params[i]));
    CHECK((outcome.tensors.momentum[i] == expected.momentum[i]));
    CHECK((outcome.tensors.variance[i] == expected.variance[i]));
  }
  for (const muonrt::StepReport& r : outcome.reports) CHECK(r.orthogonalized == r.planned);
}

}  // namespace world
