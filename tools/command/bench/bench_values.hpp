#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt::tool {

/// "f32", "bf16" or "f16".
DType dtype_named(const std::string& name);

/// 64 random bits; they follow from (seed, index).
uint64_t bench_word(uint64_t seed, int64_t index);
/// Normal but for its tails, mean 0 and variance 1: the sum of four uniform numbers, within 3.47.
/// Not zero; follows from (seed, index).
float bench_value(uint64_t seed, int64_t index);
/// `count` of them, rounded to `dtype`, as bytes.
std::vector<unsigned char> bench_values(uint64_t seed, DType dtype, int64_t count);

float bench_load(const void* from, DType dtype, int64_t index);
void bench_store(void* to, DType dtype, int64_t index, float value);
/// As it is after a bench_store.
float bench_rounded(float value, DType dtype);

/// Parts of [0, count), at the same time on threads of the tool's own.
/// @param least  of a part.
void in_parallel(int64_t count, const std::function<void(int64_t begin, int64_t end)>& work,
                 int64_t least = 1 << 14);

}  // namespace muonrt::tool
