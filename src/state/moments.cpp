#include "state/moments.hpp"

#include <cmath>

#include "base/text.hpp"
#include "state/conversions.hpp"

namespace muonrt {

std::optional<BadMoment> bad_moment(int32_t kind, const std::string& dtype, int64_t step,
                                    std::span<const unsigned char> values) {
  if (!is_moment(kind)) return std::nullopt;
  const bool second = kind != static_cast<int32_t>(StateKind::kMomentum);
  const size_t size = dtype == "BF16" ? 2 : 4;
  for (size_t i = 0; i * size < values.size(); ++i) {
    const float value = value_at(dtype, values.data() + i * size);
    const auto index = static_cast<int64_t>(i);
    if (!std::isfinite(value) || (second && value < 0))
      return BadMoment{index,
                       cat("is ", value, ", but must be a finite number", second ? " >= 0" : "")};
    if (step == 0 && value != 0)
      return BadMoment{index, cat("is ", value, ", but must be 0 at step 0")};
  }
  return std::nullopt;
}

}  // namespace muonrt
