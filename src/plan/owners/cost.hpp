#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the seconds of a step by a simple model without overlap: the FLOPs of the busiest rank,
/// plus the bytes of the rank that sends or receives most, plus its messages, each at its rate
/// (PlanOptions::rates). It can compare two plans of one problem, but does not predict times.
double step_seconds(const Plan& plan);

}  // namespace muonrt
