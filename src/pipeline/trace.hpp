#pragma once

#include <string>
#include <vector>

#include "pipeline/span.hpp"

namespace muonrt {

/// Returns the spans of a step as a Chrome trace (JSON array form; times in microseconds from the
/// first span). The process is the rank; thread 0 is the compute stream, thread 1 the exchange
/// stream.
std::string chrome_trace(const std::vector<Span>& spans, int rank);

}  // namespace muonrt
