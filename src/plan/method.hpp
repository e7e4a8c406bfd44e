#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// The two ways to orthogonalize a matrix. The choice depends only on the shape of the matrix and
/// on the options of its group.
enum class Form : int32_t { kStandard = 0, kGram = 1 };

/// The choice that the caller makes for a group. kAuto leaves it to choose_method().
enum class FormChoice : int32_t { kAuto = 0, kStandard = 1, kGram = 2 };

struct Method {
  Form form = Form::kStandard;
  int steps = 5;  // number of Newton-Schulz steps
  /// The steps before which the Gram form recomputes X, ascending. Step i is in [1, steps).
  std::vector<int> restarts;
};

/// Chooses the method of a matrix. kAuto chooses the Gram form if the short side is at least 512
/// and the long side is at least 1.5 times the short side. Otherwise it chooses the standard form.
/// @param gram_restarts  Restarts that are used if the Gram form is chosen.
Method choose_method(FormChoice choice, int64_t rows, int64_t cols, int steps,
                     const std::vector<int>& gram_restarts);

/// Returns text that explains the rule of kAuto.
std::string method_rule();

/// Returns the number of floating-point operations of one orthogonalization. A multiply-add counts
/// as 2. Symmetric products count half: m^3 for the product of two m x m matrices, and m^2 n for
/// the product of an m x n matrix with its transpose. Other products count in full: 2 m^2 n for an
/// m x m and an m x n matrix.
double orthogonalize_flops(const Method& method, int64_t rows, int64_t cols);

/// Returns the cost that is used to balance the owners. The cost is a sum over the products of a
/// matrix. Each product costs 2^20 for the launch, plus its FLOPs or 256 times the number of
/// elements that it reads or writes, whichever is larger.
/// @param ranks  Number of ranks among which the long side of the matrix is divided. Each rank
///     computes its part of the products with the long side, and repeats all other products.
double orthogonalize_cost(const Method& method, int64_t rows, int64_t cols, int64_t ranks = 1);

/// Returns text that explains the cost.
std::string cost_rule();

/// Returns the number of floating-point operations, with symmetric products counted in full.
double orthogonalize_flops_full(const Method& method, int64_t rows, int64_t cols);

}  // namespace muonrt
