#pragma once

#include <cstdint>
#include <vector>

#include "train/config.hpp"

namespace muonrt::train::test {

/// Computes the model from its formulas, in float64 with simple loops, one token after another.
/// Shares only the list of parameters with tools/train.
/// @param attention_max  layers x heads values, each of which is raised to the largest input of
///     that head's softmax. May be null.
/// @return The length x vocab logits of the tokens.
std::vector<std::vector<double>> reference_logits(const Config& config,
                                                  const std::vector<std::vector<double>>& params,
                                                  const uint8_t* tokens, int64_t length,
                                                  double* attention_max = nullptr);

/// Returns the sum of -log softmax(logits)[next token] over the tokens. Each sequence has context +
/// 1 bytes.
double reference_loss(const Config& config, const std::vector<std::vector<double>>& params,
                      const std::vector<uint8_t>& tokens);

}  // namespace muonrt::train::test
