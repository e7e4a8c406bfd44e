#pragma once

#include <cstdint>
#include <string>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

// What `bench calibrate` takes from the other benchmarks: they make the operands and check the
// results.

/// Milliseconds of the products of a Newton-Schulz step, as the default of the device computes
/// them.
struct ProductTimes {
  double symmetric_ms = 0;  // mean of the two symmetric ones
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

/// A pass over memory that has been repeated.
struct PassTime {
  double ms = 0;
  int64_t bytes = 0;  // read and written
  int64_t wrong = 0;  // of a few elements

  PassTime& operator+=(const PassTime& other) {
    ms += other.ms;
    wrong += other.wrong;
    return *this;
  }
  PassTime operator/(double ranks) const { return {ms / ranks, bytes, wrong}; }
};
/// @param name       of a row of `bench elementwise`.
/// @param footprint  bytes that it reads and writes, about.
PassTime time_pass(DeviceReport& report, const Provider& provider, const std::string& name,
                   int64_t footprint);

}  // namespace muonrt::tool
