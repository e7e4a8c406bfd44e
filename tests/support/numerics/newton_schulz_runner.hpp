#pragma once

#include <vector>

#include "algo/newton_schulz.hpp"
#include "support/backends.hpp"
#include "textbook/textbook.hpp"

namespace runner {

struct Result {
  std::vector<textbook::Matrix> matrices;  // short side first, as they went in
  muonrt::Findings findings;
};

/// A batch of equal matrices (rows <= cols), given in the precision of `transport`.
struct Job {
  muonrt::NewtonSchulz settings;
  muonrt::Method method;
  muonrt::DType transport;
  std::vector<textbook::Matrix> batch;
};

/// Orthogonalizes batches in lockstep on a backend. Workspaces are filled with NaN before, and
/// red zones around them are checked. All results have the findings of all.
std::vector<Result> orthogonalize(backends::Backend& backend, const std::vector<Job>& jobs);
/// One batch.
Result orthogonalize(backends::Backend& backend, const muonrt::NewtonSchulz& settings,
                     const muonrt::Method& method, muonrt::DType transport,
                     const std::vector<textbook::Matrix>& batch);

/// The same for one matrix.
textbook::Matrix orthogonalize(backends::Backend& backend, const muonrt::NewtonSchulz& settings,
                               const muonrt::Method& method, muonrt::DType transport,
                               const textbook::Matrix& matrix);

/// Settings of a list as it is: the same list for both forms.
muonrt::NewtonSchulz settings_of(const textbook::List& list, double safety, muonrt::DType iteration,
                                 const std::vector<int>& restarts = {});
muonrt::Method standard(const textbook::List& list);
muonrt::Method gram(const textbook::List& list, const std::vector<int>& restarts);

/// True if both hold the same bytes.
bool same_bits(const textbook::Matrix& a, const textbook::Matrix& b);

}  // namespace runner
