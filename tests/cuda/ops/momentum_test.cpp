#include "support/momentum_cases.hpp"

// The cases of unit/optimizer/momentum_test on the device under test.

TEST_CASE("cuda momentum: momentum and moments become exactly zero, and small gradients move them",
          "[cuda]") {
  auto backend = backends::cuda();
  momentum::momentum_comes_to_rest(backend);
  momentum::moments_come_to_rest(backend);
  momentum::line_moments_come_to_rest(backend);
  momentum::small_gradients_move(backend);
}

TEST_CASE("cuda momentum: bf16 momentum is rounded at random by place, and has no bias", "[cuda]") {
  auto backend = backends::cuda();
  momentum::momentum_is_rounded_by_place(backend);
  momentum::turning_momentum_has_no_bias(backend);
}
