#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muonrt/layout.h"
#include "opt_json/config.hpp"

namespace muonrt::tool {

/// A part of a matrix: a block of rows or columns, as a C struct.
struct MatrixPart {
  std::string name;
  bool columns = false;
  std::vector<muonrt_run_t> runs;
  double lr_factor = 1.0;
  std::optional<std::string> normuon_axis;
};

/// Converts `parts` of opt.json for matrices of this shape. If opt.json has no `parts`, the result
/// is empty. Throws std::runtime_error if the numbers do not fit the shape. Does not check whether
/// the parts cover the matrix, because the optimizer does this.
/// @param where  the position in opt.json and the parameter, for messages.
std::vector<MatrixPart> parts_of(const PartsConfig& config, int64_t rows, int64_t cols,
                                 const std::string& where);

}  // namespace muonrt::tool
