#pragma once

#include <vector>

#include "reference/reference.hpp"
#include "support/numerics/newton_schulz_runner.hpp"

// Batches that differ in every property in which the batches of a chunk can differ.
namespace lockstep_cases {

inline std::vector<reference::Matrix> batch(int64_t m, int64_t n, int64_t count,
                                            muonrt::DType transport) {
  std::vector<reference::Matrix> out;
  for (int64_t k = 0; k < count; ++k)
    out.push_back(reference::rounded(
        reference::gaussian(m, n, static_cast<uint64_t>(100 * m + n + k)), transport));
  return out;
}

/// Returns batches with both forms of Newton-Schulz and 3 to 10 steps. They include lists with and
/// without quintic terms, row scaling, single matrices and several matrices, f32 and half
/// precision.
inline std::vector<runner::Job> jobs() {
  using muonrt::DType;
  namespace lists = reference::lists;
  const auto& pe = lists::kPolarModded;
  const reference::List three(pe.begin(), pe.begin() + 3);
  const auto settings = [](const reference::List& list, DType dtype) {
    return runner::settings_of(list, 1.05, dtype);
  };
  auto scaled = settings(lists::kAolFlash, DType::kBF16);
  scaled.row_scaling = muonrt::RowScaling::kAol;
  std::vector<runner::Job> out;
  const auto add = [&](const muonrt::NewtonSchulz& how, const muonrt::Method& method, int64_t m,
                       int64_t n, int64_t count) {
    out.push_back({how, method, DType::kBF16, batch(m, n, count, DType::kBF16)});
  };
  add(settings(pe, DType::kBF16), runner::standard(pe), 13, 31, 2);
  add(settings(pe, DType::kBF16), runner::gram(pe, {2}), 33, 65, 1);
  add(settings(pe, DType::kF32), runner::standard(pe), 20, 20, 1);
  add(settings(lists::kCubic, DType::kF16), runner::standard(lists::kCubic), 7, 40, 3);
  add(settings(pe, DType::kBF16), runner::gram(pe, {1, 3}), 1, 9, 1);
  add(scaled, runner::standard(lists::kAolFlash), 24, 30, 2);
  add(settings(three, DType::kBF16), runner::standard(three), 40, 50, 1);
  add(settings(pe, DType::kF16), runner::gram(pe, {2}), 17, 70, 2);
  return out;
}

inline bool same_bits(const runner::Result& a, const runner::Result& b) {
  bool same = a.matrices.size() == b.matrices.size();
  for (size_t i = 0; same && i < a.matrices.size(); ++i)
    same = runner::same_bits(a.matrices[i], b.matrices[i]);
  return same;
}

}  // namespace lockstep_cases
