#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt::tool {

/// "f32", "bf16" or "f16".
DType dtype_named(const std::string& name);

/// 64 random bits, a function of (seed, index).
uint64_t bench_word(uint64_t seed, int64_t index);
/// Normal except for its tails, with mean 0 and variance 1: the sum of four uniform numbers, within
/// 3.47 and never zero. A function of (seed, index).
float bench_value(uint64_t seed, int64_t index);
/// `count` of them, rounded to `dtype`, as bytes.
std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count);

float bench_load(const void* from, DType dtype, int64_t index);
void bench_store(void* to, DType dtype, int64_t index, float value);
/// The value that bench_load returns after a bench_store.
float bench_rounded(float value, DType dtype);
/// The largest relative error of one rounding.
double unit_of(DType dtype);

/// Does `work` for parts of [0, count) on up to 16 threads.
void in_parallel(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace muonrt::tool
