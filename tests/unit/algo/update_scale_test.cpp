#include "algo/update_scale.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "reference/reference.hpp"
#include "support/catalogue.hpp"

using namespace muonrt;
using reference::Scale;

namespace {

constexpr std::pair<ScaleRule, Scale> kRules[] = {{ScaleRule::kMatchRms, Scale::kMatchRms},
                                                  {ScaleRule::kOriginal, Scale::kOriginal},
                                                  {ScaleRule::kRatio, Scale::kRatio},
                                                  {ScaleRule::kMaxDim, Scale::kMaxDim},
                                                  {ScaleRule::kNone, Scale::kNone}};

}  // namespace

TEST_CASE("update scale: every rule equals the reference over the catalogue of shapes",
          "[unit][update-scale]") {
  for (const auto& [rule, expected] : kRules) {
    for (const auto& s : catalogue::kShapes) {
      INFO("scale_rule " << static_cast<int>(rule) << ", " << s.rows << " x " << s.cols);
      CHECK(update_scale(rule, 1.0, s.rows, s.cols) ==
            Approx(reference::scale_factor(expected, s.rows, s.cols)).epsilon(1e-15));
    }
  }
}

TEST_CASE("update scale: known values", "[unit][update-scale]") {
  CHECK(update_scale(ScaleRule::kMatchRms, 1.0, 3072, 768) == Approx(0.2 * std::sqrt(3072.0)));
  CHECK(update_scale(ScaleRule::kMatchRms, 1.0, 768, 3072) == Approx(0.2 * std::sqrt(3072.0)));
  CHECK(update_scale(ScaleRule::kOriginal, 1.0, 3072, 768) == 2.0);
  CHECK(update_scale(ScaleRule::kOriginal, 1.0, 768, 3072) == 1.0);
  CHECK(update_scale(ScaleRule::kRatio, 1.0, 3072, 768) == 2.0);
  CHECK(update_scale(ScaleRule::kRatio, 1.0, 768, 3072) == 0.5);
  CHECK(update_scale(ScaleRule::kMaxDim, 1.0, 16, 25) == 5.0);
  CHECK(update_scale(ScaleRule::kNone, 1.0, 16, 25) == 1.0);
  CHECK(update_scale(ScaleRule::kMaxDim, 0.2, 400, 25) ==
        Approx(update_scale(ScaleRule::kMatchRms, 1.0, 400, 25)));
}

TEST_CASE("update scale: the factor multiplies, empty matrices have 0, invalid input is rejected",
          "[unit][update-scale]") {
  for (const auto& [rule, expected] : kRules) {
    CHECK(update_scale(rule, 3.0, 24, 96) == Approx(3 * update_scale(rule, 1.0, 24, 96)));
    CHECK(update_scale(rule, 0.0, 24, 96) == 0.0);
    CHECK(update_scale(rule, 1.0, 0, 96) == 0.0);
    CHECK(update_scale(rule, 1.0, 24, 0) == 0.0);
    CHECK_THROWS_AS(update_scale(rule, std::nan(""), 2, 2), Error);
    CHECK_THROWS_AS(update_scale(rule, std::numeric_limits<double>::infinity(), 2, 2), Error);
    CHECK_THROWS_AS(update_scale(rule, 1.0, -1, 2), Error);
  }
  CHECK_THROWS_AS(update_scale(static_cast<ScaleRule>(9), 1.0, 2, 2), Error);
}
