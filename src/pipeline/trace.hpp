#pragma once

#include <cstdint>
#include <string>

#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the spans of the last step as a Chrome trace (a JSON list of events). The process is the
/// rank; thread 0 is the compute stream, thread 1 the exchange stream. `args` has the step, the
/// chunk, the bytes of exchanges, and the matrices of products.
/// @param step          its number, from 1.
/// @param clock_offset  nanoseconds that are added to the times of spans.
std::string chrome_trace(const Pipeline& pipeline, int rank, int64_t step, int64_t clock_offset);

}  // namespace muonrt
