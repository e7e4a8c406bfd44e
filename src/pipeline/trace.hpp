#pragma once

#include <cstdint>
#include <string>

#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the spans of the last step in the Chrome trace format (a JSON list of events). In the
/// trace, the process is the rank, thread 0 is the compute stream, and thread 1 is the exchange
/// stream. `args` contains the step, the chunk, the bytes of exchanges, and the matrices of
/// products.
/// @param step          Number of the step, starting at 1.
/// @param clock_offset  Nanoseconds that are added to the times of spans.
std::string chrome_trace(const Pipeline& pipeline, int rank, int64_t step, int64_t clock_offset);

}  // namespace muonrt
