#pragma once

#include <string>
#include <vector>

#include "optimizer/settings/settings.hpp"

namespace muonrt {

const char* name_of(QkKind kind);

/// A layer of attention whose logits are handed over at each step.
struct QkLogits {
  int32_t layer;
  int32_t heads;
  int64_t logits_at;  // its first among all layers', which come in ascending order
};

/// Layers that parameters name, ascending. Errors: INVALID_ARGUMENT, naming the parameter, where
/// two disagree on the number of heads.
std::vector<QkLogits> qk_layers(const OptimizerSettings& settings);
int64_t logit_count(const std::vector<QkLogits>& layers);

/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, naming the parameter and field.
void validate_qk_clip(const OptimizerSettings& settings, const ParamSettings& param);

/// One line for the comparison between ranks.
std::string describe(const QkClipSettings& clip);

}  // namespace muonrt
