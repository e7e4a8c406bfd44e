#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace muonrt::tool {

/// Finite numbers above 0, or from 0 on. CLI11's own validators answer with an upper bound of 300
/// digits.
inline CLI::Validator number_from_zero(bool zero_too) {
  return {[zero_too](const std::string& text) {
            double value = 0;
            const bool valid = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                               (zero_too ? value >= 0 : value > 0);
            if (valid) return std::string();
            return text + " is not a finite number " + (zero_too ? "from 0 on" : "above 0");
          },
          zero_too ? "NUMBER >= 0" : "NUMBER > 0"};
}
inline CLI::Validator positive() { return number_from_zero(false); }
inline CLI::Validator nonnegative() { return number_from_zero(true); }

}  // namespace muonrt::tool
