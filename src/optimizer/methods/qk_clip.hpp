#pragma once

#include <string>
#include <vector>

#include "optimizer/settings/settings.hpp"

namespace muonrt {

const char* name_of(QkKind kind);

/// An attention layer whose logits the caller passes in each step.
struct QkLogits {
  int32_t layer;
  int32_t heads;
  int64_t logits_at;  // index of its first logit; the layers are in ascending order
};

/// Returns the layers that parameters name, in ascending order. Errors: INVALID_ARGUMENT, naming
/// the parameter, if two parameters of a layer have different numbers of heads, or if their names
/// give both the queries, or both the keys, of one layer.
std::vector<QkLogits> qk_layers(const OptimizerSettings& settings);
int64_t logit_count(const std::vector<QkLogits>& layers);

/// Replaces a kind and a layer that the parameter's name determines; include/muonrt/param.h has the
/// rule. Errors: INVALID_ARGUMENT, naming the parameter, if the name does not determine them.
/// @param ndim  number of dimensions of the whole tensor.
void resolve_qk_clip(QkClipSettings& clip, const std::string& param, int32_t ndim);

/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, naming the parameter and field.
void validate_qk_clip(const OptimizerSettings& settings, const ParamSettings& param);

/// Describes the settings in one line for the comparison between ranks.
std::string describe(const QkClipSettings& clip);

}  // namespace muonrt
