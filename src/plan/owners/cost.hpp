#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the time of the products of a matrix in seconds: its cost in FLOPs divided by the
/// machine's rate for products of this size.
double product_seconds(const Matrix& m, const ParamSpec& spec, const MachineProfile& machine);

/// Estimates the time of a step in seconds: the time of the products on the busiest rank, plus the
/// time of the exchanges, minus the time during which both overlap (hidden_bytes()).
///
/// The time of the exchanges is the sum of three terms: the largest number of bytes that a rank
/// sends or receives, the largest number of messages of a rank, and the number of exchanges, each
/// with its rate in PlanOptions::machine. Bytes are transferred at the rate inside a node if each
/// matrix (with kEach: each replica of a matrix) is held within one node.
///
/// Use the result only to compare plans for the same problem; simulate() (src/model) predicts
/// times.
double step_seconds(const Plan& plan);

}  // namespace muonrt
