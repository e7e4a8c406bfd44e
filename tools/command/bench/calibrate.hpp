#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "command/bench/bench_options.hpp"

namespace muonrt::tool {

/// Runs an exchange between threads. Each rank sends `bytes` to every other rank. Returns the time
/// on the slowest rank in milliseconds, and adds the number of wrong bytes to `wrong`.
using TimeExchange = std::function<double(int ranks, int64_t bytes, int64_t& wrong)>;

/// Measures a device and prints the results. If all results are correct, writes a profile. Returns
/// the exit status.
int calibrate(const DeviceArguments& arguments, const std::string& file,
              const TimeExchange& exchange);

}  // namespace muonrt::tool
