#pragma once

#include "plan/plan.hpp"

namespace muonrt {

/// Returns the time of the products of a matrix in seconds: its cost in FLOPs, at the rate that the
/// machine has for products of this size.
double product_seconds(const Matrix& m, const ParamSpec& spec, const MachineProfile& machine);

/// Returns the time of a step in seconds by a simple model: that of the products of the busiest
/// rank, and that of the exchanges, which overlap with products to the extent of hidden_bytes().
/// The time of the exchanges is the sum of the largest number of bytes that a rank sends or
/// receives, the largest number of messages that a rank sends, and the number of exchanges, each at
/// the rate of PlanOptions::machine. Bytes have the rate of a node's links if all ranks that hold a
/// matrix, or its replica with kEach, are in one node. Use it only to compare plans for the same
/// problem; simulate() (src/model) predicts times.
double step_seconds(const Plan& plan);

}  // namespace muonrt
