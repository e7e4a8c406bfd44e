#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the time of the products of a matrix in seconds: its cost in FLOPs divided by the
/// machine's rate for products of this size.
double product_seconds(const Matrix& m, const ParamSpec& spec, const MachineProfile& machine);

/// Estimates the time of a step in seconds: the time of the products of the busiest rank plus the
/// time of the exchanges, minus the time during which they overlap (hidden_bytes()). The time of
/// the exchanges is a sum of three terms with the rates of PlanOptions::machine: the largest number
/// of bytes that a rank sends or receives, the largest number of messages of a rank, and the number
/// of exchanges. Bytes are transferred at the rate of a node's links if each matrix is held within
/// one node (with kEach: each replica of a matrix). Use the result only to compare plans for the
/// same problem; simulate() (src/model) predicts times.
double step_seconds(const Plan& plan);

}  // namespace muonrt
