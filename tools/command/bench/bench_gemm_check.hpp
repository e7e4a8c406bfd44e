#pragma once

#include <functional>
#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// An element of an input, by its index in the memory of the batch, before it is rounded.
using ValueOf = float (*)(const MatrixBatch& m, int64_t index);
float general_value(const MatrixBatch& m, int64_t index);
float symmetric_value(const MatrixBatch& m, int64_t index);
float zero_value(const MatrixBatch& m, int64_t index);

/// What some elements of a product must be, in f64: places drawn in every matrix, its corners among
/// them. 400 of one matrix, of many together some 400 or 9 of each.
class GemmCheck {
 public:
  /// @param value_of  for each operand.
  GemmCheck(const Product& product, const std::function<ValueOf(const MatrixBatch&)>& value_of);
  /// Elements of all that are not finite, and of these places those that are further off than their
  /// roundings allow.
  /// @param in_parts  sums of parts of the depth may have been rounded to the result's dtype.
  int64_t wrong(Workbench& bench, const MatrixBatch& result, bool in_parts = false) const;

 private:
  struct Sample {
    int64_t matrix, row, col;
    double value, allowed, allowed_in_parts;
  };
  std::vector<Sample> samples_;
};

}  // namespace muonrt::tool
