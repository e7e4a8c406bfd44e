#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
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

/// CLI11 takes -1 for 2^64 - 1.
inline CLI::Validator whole_from_zero() {
  return {[](const std::string& text) {
            uint64_t value = 0;
            const auto end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, value);
            return read.ec == std::errc() && read.ptr == end
                       ? std::string()
                       : text + " is not a whole number from 0 to 2^64 - 1";
          },
          "UINT"};
}

/// Of files that may be left out: "" comes of a variable that was never set.
inline CLI::Validator file_name() {
  return {[](const std::string& text) {
            return std::string(text.empty() ? "is empty; give the name of a file" : "");
          },
          "FILE"};
}

}  // namespace muonrt::tool
