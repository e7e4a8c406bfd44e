#pragma once

#include <string>
#include <vector>

#include "optimizer/settings/settings.hpp"

namespace muonrt {

const char* name_of(QkKind kind);

/// An attention layer for which the caller passes logits in each step.
struct QkLogits {
  int32_t layer;
  int32_t heads;
  int64_t logits_at;  // index of the layer's first logit; layers are in ascending order
};

/// Returns the layers to which parameters refer, in ascending order.
/// Errors: INVALID_ARGUMENT, with the parameter, if two parameters of a layer have different
/// numbers of heads, or if their names indicate that both contain the same weights (query or key).
std::vector<QkLogits> qk_layers(const OptimizerSettings& settings);
int64_t logit_count(const std::vector<QkLogits>& layers);

/// Sets the kind and the layer from the parameter's name if the settings do not specify them;
/// include/muonrt/param.h describes the rule.
/// Errors: INVALID_ARGUMENT, with the parameter, if its name does not determine them.
/// @param ndim  Number of dimensions of the whole tensor.
void resolve_qk_clip(QkClipSettings& clip, const std::string& param, int32_t ndim);

/// Checks the settings of QK-clip. Errors: INVALID_ARGUMENT or NOT_SUPPORTED, with the parameter
/// and the field.
void validate_qk_clip(const OptimizerSettings& settings, const ParamSettings& param);

/// Returns the settings as one line of text, which the ranks compare.
std::string describe(const QkClipSettings& clip);

}  // namespace muonrt
