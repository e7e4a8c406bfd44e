#pragma once

#include <vector>

#include "algo/newton_schulz.hpp"
#include "reference/reference.hpp"
#include "support/backends.hpp"

namespace runner {

struct Result {
  std::vector<reference::Matrix> matrices;  // short side first, as in the input
  muonrt::Findings findings;
};

/// A batch of matrices of equal shape (rows <= cols), with values that `transport` can represent.
struct Job {
  muonrt::NewtonSchulz settings;
  muonrt::Method method;
  muonrt::DType transport;
  std::vector<reference::Matrix> batch;
};

/// Orthogonalizes batches in lockstep on a backend. Fills workspaces with NaN beforehand, and
/// checks the red zones around them. Each result contains the findings of all batches.
std::vector<Result> orthogonalize(backends::Backend& backend, const std::vector<Job>& jobs);
/// Like the function above, but for one batch.
Result orthogonalize(backends::Backend& backend, const muonrt::NewtonSchulz& settings,
                     const muonrt::Method& method, muonrt::DType transport,
                     const std::vector<reference::Matrix>& batch);

/// Like the function above, but for one matrix.
reference::Matrix orthogonalize(backends::Backend& backend, const muonrt::NewtonSchulz& settings,
                                const muonrt::Method& method, muonrt::DType transport,
                                const reference::Matrix& matrix);

/// Returns settings that use `list` without changes, for both forms.
muonrt::NewtonSchulz settings_of(const reference::List& list, double safety,
                                 muonrt::DType iteration, const std::vector<int>& restarts = {});
muonrt::Method standard(const reference::List& list);
muonrt::Method gram(const reference::List& list, const std::vector<int>& restarts);

/// Returns whether two matrices are bitwise identical.
bool same_bits(const reference::Matrix& a, const reference::Matrix& b);

}  // namespace runner
