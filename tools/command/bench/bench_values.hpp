#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt::tool {

/// Returns the dtype with the name "f32", "bf16" or "f16".
DType dtype_named(const std::string& name);

/// Returns 64 random bits that depend only on (seed, index).
uint64_t bench_word(uint64_t seed, int64_t index);
/// Returns the sum of four uniform random numbers, which depends only on (seed, index). It has mean
/// 0 and variance 1, and approximates a normal distribution without tails: its absolute value is at
/// most 3.47. It is never zero.
float bench_value(uint64_t seed, int64_t index);
/// Returns the bytes of `count` such values, rounded to `dtype`.
std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count);

float bench_load(const void* from, DType dtype, int64_t index);
void bench_store(void* to, DType dtype, int64_t index, float value);
/// Returns the value that bench_load would read back after bench_store has stored it.
float bench_rounded(float value, DType dtype);
/// Returns the largest relative error of one rounding.
double unit_of(DType dtype);

/// Divides [0, count) into parts, and runs `work` for each part on up to 16 threads.
void in_parallel(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace muonrt::tool
