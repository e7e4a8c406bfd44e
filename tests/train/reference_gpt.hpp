#pragma once

#include <cstdint>
#include <vector>

#include "train/config.hpp"

namespace muonrt::train::test {

/// The model by its formulas, in float64 and portable loops, one token after another; shares no
/// code with tools/train but the list of parameters.
/// @param attention_max  layers x heads: raised to the largest input of each head's softmax; may be
///                       null.
/// @return  length x vocab logits of the tokens.
std::vector<std::vector<double>> reference_logits(const Config& config,
                                                  const std::vector<std::vector<double>>& params,
                                                  const uint8_t* tokens, int64_t length,
                                                  double* attention_max = nullptr);

/// Sum over the tokens of -log softmax(logits)[next token]; each sequence has context + 1 bytes.
double reference_loss(const Config& config, const std::vector<std::vector<double>>& params,
                      const std::vector<uint8_t>& tokens);

}  // namespace muonrt::train::test
