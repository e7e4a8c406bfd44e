#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muonrt/layout.h"
#include "opt_json/config.hpp"

namespace muonrt::tool {

/// A block of rows or columns of a matrix, in the form of the C ABI.
struct MatrixPart {
  std::string name;
  bool columns = false;
  std::vector<muonrt_run_t> runs;
  double lr_factor = 1.0;
  std::optional<std::string> normuon_axis;
};

/// Converts `parts` for matrices of this shape. The result is empty if opt.json has no `parts`.
/// Throws std::runtime_error if the numbers do not fit the shape. The optimizer checks that the
/// parts cover the matrix.
/// @param where  "opt.json: rules[2].parts" and the parameter, for messages.
std::vector<MatrixPart> parts_of(const PartsConfig& config, int64_t rows, int64_t cols,
                                 const std::string& where);

}  // namespace muonrt::tool
