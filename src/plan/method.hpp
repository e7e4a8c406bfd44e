#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt {

/// How a matrix is orthogonalized; a function of its shape and of its group's options alone.
enum class Form : int32_t { kStandard = 0, kGram = 1 };

/// The caller's wish for a group.
enum class FormChoice : int32_t { kAuto = 0, kStandard = 1, kGram = 2 };

struct Method {
  Form form = Form::kStandard;
  int steps = 5;              // Newton-Schulz steps
  std::vector<int> restarts;  // Gram form: rebuild X before these steps (1 <= i < steps), ascending
};

/// The rule of design 13: Gram if long side / short side >= 1.5 and short side >= 512, else
/// standard.
/// @param gram_restarts  restarts to use where the Gram form is taken.
Method choose_method(FormChoice choice, int64_t rows, int64_t cols, int steps,
                     const std::vector<int>& gram_restarts);

/// The rule in words.
std::string method_rule();

/// Floating-point operations (a multiply-add is 2) of one orthogonalization with symmetric products
/// at half cost: m x m by m x m is m^3, m x n with its transpose m^2 n, and m x m by m x n, whole,
/// 2 m^2 n.
double orthogonalize_flops(const Method& method, int64_t rows, int64_t cols);

/// What owners are balanced by: those, and 2^20 for the launch of each product.
double orthogonalize_cost(const Method& method, int64_t rows, int64_t cols);

/// FLOPs if every product were computed in full.
double orthogonalize_flops_full(const Method& method, int64_t rows, int64_t cols);

}  // namespace muonrt
