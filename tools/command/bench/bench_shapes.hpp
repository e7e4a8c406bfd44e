#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// `count` matrices, short side first.
struct BenchShape {
  int64_t rows = 0, cols = 0, count = 1;
  auto operator<=>(const BenchShape&) const = default;
};

/// What --shapes takes, in its help.
constexpr const char* kShapesHelp =
    "rows x columns [x how many], short side first; or sizes (256 to 16384), batches, ratios, or a "
    "model's name, for its distinct matrices";

/// Shapes of a list of such words. A model's are as many as it has, but no more than 2^28 elements
/// hold.
/// Throws CLI::ValidationError.
std::vector<BenchShape> bench_shapes(const std::vector<std::string>& words);

}  // namespace muonrt::tool
