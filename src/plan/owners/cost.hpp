#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the time of a step in seconds by a simple model without overlap. The time is the sum of
/// three parts: the cost of the busiest rank in FLOPs, the largest number of bytes that a rank
/// sends or receives, and the largest number of messages that a rank sends, each at its rate in
/// PlanOptions::rates. Use it only to compare plans for the same problem; it does not predict
/// times.
double step_seconds(const Plan& plan);

}  // namespace muonrt
