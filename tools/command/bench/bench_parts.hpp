#pragma once

#include <cstdint>
#include <string>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

// `bench calibrate` uses these measurements from other benchmarks, which create the operands and
// check the results.

/// The times of the products of a Newton-Schulz step in milliseconds, with the device's default
/// provider.
struct ProductTimes {
  double symmetric_ms = 0;  // mean of the two symmetric products
  double general_ms = 0;
  int64_t wrong = 0;

  ProductTimes& operator+=(const ProductTimes& other) {
    symmetric_ms += other.symmetric_ms;
    general_ms += other.general_ms;
    wrong += other.wrong;
    return *this;
  }
  ProductTimes operator/(double ranks) const {
    return {symmetric_ms / ranks, general_ms / ranks, wrong};
  }
};
ProductTimes time_products(DeviceReport& report, const Provider& provider, const BenchShape& shape,
                           DType dtype);

/// The time of a pass over memory, measured by repeating the pass.
struct PassTime {
  double ms = 0;
  int64_t bytes = 0;  // read and written
  int64_t wrong = 0;  // number of wrong bytes in a sample of elements

  PassTime& operator+=(const PassTime& other) {
    ms += other.ms;
    wrong += other.wrong;
    return *this;
  }
  PassTime operator/(double ranks) const { return {ms / ranks, bytes, wrong}; }
};
/// @param name       the name of a row of `bench elementwise`.
/// @param footprint  the approximate number of bytes that the pass reads and writes.
PassTime time_pass(DeviceReport& report, const Provider& provider, const std::string& name,
                   int64_t footprint);

}  // namespace muonrt::tool
