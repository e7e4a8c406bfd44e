#pragma once

#include <string_view>
#include <vector>

namespace muonrt::tool {

/// Values of a dtype of safetensors (F32, BF16, F16) as f32, which holds each of them exactly.
/// @param out  room for as many f32.
void widen(std::string_view dtype, const std::vector<unsigned char>& from, unsigned char* out);

/// One value of F32, BF16 or F16.
float element_as_float(std::string_view dtype, const unsigned char* at);

}  // namespace muonrt::tool
