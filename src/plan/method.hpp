#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// How a matrix is orthogonalized. Depends only on its shape and on the options of its group.
enum class Form : int32_t { kStandard = 0, kGram = 1 };

/// The form that the caller chose for a group.
enum class FormChoice : int32_t { kAuto = 0, kStandard = 1, kGram = 2 };

struct Method {
  Form form = Form::kStandard;
  int steps = 5;              // Newton-Schulz steps
  std::vector<int> restarts;  // Gram form: rebuild X before these steps (1 <= i < steps), ascending
};

/// Chooses the method of a matrix. kAuto chooses the Gram form if long side / short side >= 1.5 and
/// short side >= 512, otherwise the standard form.
/// @param gram_restarts  restarts of the Gram form.
Method choose_method(FormChoice choice, int64_t rows, int64_t cols, int steps,
                     const std::vector<int>& gram_restarts);

/// Returns the rule of kAuto as text.
std::string method_rule();

/// Returns the floating-point operations of one orthogonalization; a multiply-add counts as 2.
/// Symmetric products count half: m^3 for m x m by m x m, m^2 n for m x n by its transpose. Other
/// products count in full: 2 m^2 n for m x m by m x n.
double orthogonalize_flops(const Method& method, int64_t rows, int64_t cols);

/// Returns the cost by which owners are balanced, the sum over the products of a matrix: its FLOPs,
/// or 256 for each element that it reads or writes if that is more, plus 2^20 for its launch.
/// @param ranks  number of ranks among which the long side of the matrix is divided. Each of them
///     computes its part of the products with the long side, and all of the others.
double orthogonalize_cost(const Method& method, int64_t rows, int64_t cols, int64_t ranks = 1);

/// Returns the rule of orthogonalize_cost as text.
std::string cost_rule();

/// Returns the floating-point operations if symmetric products were computed in full.
double orthogonalize_flops_full(const Method& method, int64_t rows, int64_t cols);

}  // namespace muonrt
