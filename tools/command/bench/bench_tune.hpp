#pragma once

#include <string>
#include <vector>

#include "backend/sm90_tuning.hpp"

namespace muonrt::tool {

/// Reads what `bench gemm|ns --tune` says of the products of `sm90`: pairs=0|1, early=0|1,
/// tiles=large|medium|small|wide, slices=1|2|4, raster=ROWS.
/// Throws CLI::ValidationError that names the word and what there is.
Sm90Tuning read_tuning(const std::vector<std::string>& words);

}  // namespace muonrt::tool
