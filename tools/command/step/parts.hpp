#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muonrt/layout.h"
#include "opt_json/config.hpp"

namespace muonrt::tool {

/// A block of rows (or of columns) of a matrix, ready for the C ABI.
struct MatrixPart {
  std::string name;
  bool columns = false;
  std::vector<muonrt_run_t> runs;
  double lr_factor = 1.0;
  std::optional<std::string> axis;
};

/// What `parts` means for matrices of this shape; nothing where it is not given.
/// @param where  "opt.json: rules[2].parts" and the parameter, for messages.
/// Throws std::runtime_error if the numbers do not fit the shape. The optimizer checks that parts
/// tile the matrix.
std::vector<MatrixPart> parts_of(const PartsConfig& config, int64_t rows, int64_t cols,
                                 const std::string& where);

}  // namespace muonrt::tool
