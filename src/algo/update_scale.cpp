#include "algo/update_scale.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace muonrt {

double update_scale(ScaleRule rule, double factor, int64_t rows, int64_t cols) {
  MUONRT_REQUIRE(rows >= 0 && cols >= 0, Status::kInvalidArgument, "scale rule: shape ", rows,
                 " x ", cols, " is negative; give the global shape");
  MUONRT_REQUIRE(std::isfinite(factor), Status::kInvalidArgument, "scale rule: factor ", factor,
                 " is not finite; give a finite number");
  if (rows == 0 || cols == 0) return 0.0;
  const double r = static_cast<double>(rows), c = static_cast<double>(cols);
  switch (rule) {
    case ScaleRule::kMatchRms:
      return factor * 0.2 * std::sqrt(std::max(r, c));
    case ScaleRule::kOriginal:
      return factor * std::sqrt(std::max(1.0, r / c));
    case ScaleRule::kRatio:
      return factor * std::sqrt(r / c);
    case ScaleRule::kMaxDim:
      return factor * std::sqrt(std::max(r, c));
    case ScaleRule::kNone:
      return factor;
  }
  throw Error(Status::kInvalidArgument,
              cat("scale rule ", static_cast<int32_t>(rule), " is unknown; give 0 to 4"));
}

}  // namespace muonrt
