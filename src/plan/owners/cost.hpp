#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Seconds that a step takes by a plain model: the FLOPs of the busiest rank, then the bytes of the
/// rank that sends or receives most, then its messages, each at its rate (PlanOptions::rates); no
/// overlap. Good to compare two plans of one problem, not to predict a time.
double step_seconds(const Plan& plan);

}  // namespace muonrt
