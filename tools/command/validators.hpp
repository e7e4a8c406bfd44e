#pragma once

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

namespace muonrt::tool {

// The names of mesh dimensions that muonrt/strategies.h defines, except tp and ep.
inline const std::string kShards = "fsdp, dp_shard, zero, hsdp_shard, shard, dp_shard_cp and efsdp";
inline const std::string kReplicates =
    "dp, ddp, dp_replicate, hsdp_replicate, replicate, cp and sp";

/// Returns the help text of --mesh.
/// @param tp, ep  what a dimension of this name does to a tensor.
inline std::string mesh_help(const std::string& tp, const std::string& ep) {
  return "name=size,...: " + kShards + " shard dimension 0; tp " + tp + "; ep " + ep + "; " +
         kReplicates + " replicate";
}

/// Accepts finite numbers above zero, or from zero on if `zero_too`. The validators of CLI11 would
/// print an upper bound of 300 digits.
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
/// Accepts numbers from `low` to `high`. CLI11 would print these bounds with 31 digits.
inline CLI::Validator number_between(double low, double high) {
  std::ostringstream range;
  range << "from " << low << " to " << high;
  return {[=, range = range.str()](const std::string& text) {
            double value = 0;
            const bool valid =
                CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return valid ? std::string() : text + " is not a number " + range;
          },
          "NUMBER " + range.str()};
}
inline CLI::Validator positive() { return number_from_zero(false); }
inline CLI::Validator nonnegative() { return number_from_zero(true); }

/// Accepts whole numbers from 0 on. CLI11 would accept -1 as 2^64 - 1.
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

/// Rejects whole numbers that do not fit into 64 bits. CLI11 would truncate them.
inline CLI::Validator in_64_bits() {
  return {[](const std::string& text) {
            errno = 0;
            std::strtoll(text.c_str(), nullptr, 0);
            return errno == ERANGE ? text + " does not fit into 64 bits" : std::string();
          },
          ""};
}

/// Converts a size with a unit, such as 4096, 1e9, 64KiB or 5GB, to bytes. K, M, ... mean KiB, MiB,
/// ...
inline CLI::Validator size_with_unit() {
  return {[](std::string& text) {
            size_t length = 0;
            long double bytes = -1;
            try {
              bytes = std::stold(text, &length);
            } catch (const std::exception&) {
            }
            const std::string unit = CLI::detail::to_lower(text.substr(length));
            const size_t power = unit.empty() ? 0 : std::string("bkmgtp").find(unit[0]);
            const std::string rest = unit.substr(unit.empty() ? 0 : 1);
            const bool known =
                power == 0 ? rest.empty() : rest.empty() || rest == "b" || rest == "ib";
            if (!std::isfinite(bytes) || bytes < 0 || power == std::string::npos || !known)
              return text + " is not a size in bytes, such as 268435456, 256MiB or 5GB";
            bytes *= std::pow(rest == "b" ? 1000.0L : 1024.0L, static_cast<long double>(power));
            const bool whole = bytes == std::floor(bytes) && bytes < 0x1p63L;
            if (whole) text = std::to_string(static_cast<int64_t>(bytes));
            // Other numbers without a unit, such as a rate of 0.5, are checked by the type of the
            // option.
            return whole || unit.empty() ? "" : text + " is not a whole number of bytes below 2^63";
          },
          ""};
}

/// Rejects an empty file name, which a script passes if a variable is not set.
inline CLI::Validator file_name() {
  return {[](const std::string& text) {
            return std::string(text.empty() ? "is empty; give the name of a file" : "");
          },
          "FILE"};
}

/// Adds an option whose help shows its default.
/// @param checks  validators of CLI11.
template <class T, class... Checks>
void with_default(CLI::App& command, const std::string& name, T& value, const std::string& help,
                  Checks... checks) {
  CLI::Option* const option = command.add_option(name, value, help)->capture_default_str();
  (option->check(checks), ...);
}

/// Adds --max-shard-bytes.
/// @param before  the beginning of the help text.
inline CLI::Option* shard_bytes_option(CLI::App& command, int64_t& most,
                                       const std::string& before = "") {
  return command
      .add_option("--max-shard-bytes", most,
                  before + "bytes of the tensors of a file, unless it has one: 5000000000, 4GiB")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
}

}  // namespace muonrt::tool
