#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "opt_json/config.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

/// The largest attention logits of every head, for QK-clip: one file for each step.
class StepLogits {
 public:
  /// @param used   the rules of the parameters that step. @param steps  how many there will be.
  /// Throws where a file, a layer or a head is missing, or is there for nothing.
  StepLogits(const StepConfig& config, const std::vector<size_t>& used,
             const std::vector<std::string>& paths, size_t steps);

  bool empty() const { return layers_.empty(); }
  /// Of a step, layer by layer, ascending.
  std::vector<float> at(size_t step) const;

 private:
  std::map<int64_t, int64_t> layers_;  // and their query heads
  std::vector<std::unique_ptr<TensorModel>> files_;
};

}  // namespace muonrt::tool
