#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "train/model/gpt.hpp"

namespace muonrt::train {

struct SampleOptions {
  int64_t bytes = 300;
  double temperature = 0.8;  // 0 always takes the most likely byte
  uint64_t seed = 1;
  std::function<bool()> stops = {};  // called before each byte; true stops; null never stops
};

/// Generates options.bytes bytes after a line break. The model sees the last `context` bytes.
std::string sample_text(const Gpt& gpt, const float* const* params, const SampleOptions& options,
                        Workspace& ws);

/// Makes a text printable on a terminal: line breaks, tabs, printable ASCII and well-formed UTF-8
/// stay, and any other byte becomes '?'.
std::string printable(const std::string& text);

}  // namespace muonrt::train
