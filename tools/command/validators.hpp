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

#include "base/size_text.hpp"

namespace muonrt::tool {

// The names of mesh dimensions in muonrt/strategies.h, except tp and ep.
inline const std::string kShards = "fsdp, dp_shard, zero, hsdp_shard, shard, dp_shard_cp and efsdp";
inline const std::string kReplicates =
    "dp, ddp, dp_replicate, hsdp_replicate, replicate, cp and sp";

/// Returns the help text of --mesh.
/// @param tp, ep how a dimension with this name shards a tensor.
inline std::string mesh_help(const std::string& tp, const std::string& ep) {
  return "name=size,...: " + kShards + " shard dimension 0; tp " + tp + "; ep " + ep + "; " +
         kReplicates + " replicate";
}

/// Accepts finite numbers above zero and, if `zero_too` is set, zero. CLI11's validators are not
/// used, because they would print an upper bound of 300 digits.
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
/// Accepts numbers from `low` to `high`. CLI11's own validator would print these bounds with 31
/// digits.
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

/// Accepts whole numbers >= 0. CLI11 by itself would accept -1 as 2^64 - 1.
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

/// Rejects whole numbers that do not fit into 64 bits, which CLI11 would truncate.
inline CLI::Validator in_64_bits() {
  return {[](const std::string& text) {
            errno = 0;
            std::strtoll(text.c_str(), nullptr, 0);
            return errno == ERANGE ? text + " does not fit into 64 bits" : std::string();
          },
          ""};
}

/// Converts a size with a unit to bytes (parse_bytes).
inline CLI::Validator size_with_unit() {
  return {[](std::string& text) {
            double rate = -1;
            if (const auto bytes = parse_bytes(text)) {
              text = std::to_string(*bytes);
            } else if (!CLI::detail::lexical_cast(text, rate) || !(rate >= 0 && rate < 1e300)) {
              // Other numbers, such as a learning rate of 0.5, pass: the option's type checks them.
              return text + " is not a size in bytes, such as 268435456, 256MiB or 5GB";
            }
            return std::string();
          },
          ""};
}

/// Rejects an empty file name, which a script may pass by mistake if a variable is not set.
inline CLI::Validator file_name() {
  return {[](const std::string& text) {
            return std::string(text.empty() ? "is empty; give the name of a file" : "");
          },
          "FILE"};
}

/// Adds an option whose help shows its default.
/// @param checks  CLI11 validators.
template <class T, class... Checks>
void with_default(CLI::App& command, const std::string& name, T& value, const std::string& help,
                  Checks... checks) {
  CLI::Option* const option = command.add_option(name, value, help)->capture_default_str();
  (option->check(checks), ...);
}

/// Adds --max-shard-bytes.
/// @param before  text at the start of the help.
inline CLI::Option* shard_bytes_option(CLI::App& command, int64_t& most,
                                       const std::string& before = "") {
  return command
      .add_option("--max-shard-bytes", most,
                  before + "bytes of the tensors of a file, unless it has one: 5000000000, 4GiB")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
}

}  // namespace muonrt::tool
