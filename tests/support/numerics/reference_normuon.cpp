#include <algorithm>
#include <cmath>

#include "support/numerics/reference_ops.hpp"

namespace reference {

using namespace muonrt;

namespace {

void normuon_of(const MatrixBatch& m, const NormuonState& state, const MuonScalars* groups) {
  const int64_t length = state.stored_rows ? m.cols : m.rows;
  const auto place = [&](int64_t line, int64_t i) {
    return state.stored_rows ? line * m.ld + i : i * m.ld + line;
  };
  const auto at = [&](int64_t i) { return static_cast<double>(load(m.data, m.dtype, i)); };
  const bool moments = state.rule == LineRule::kNormuon, one_factor = state.rule == LineRule::kNorm;
  const double beta2 = moments ? static_cast<double>(groups[state.group].normuon_beta2) : 0.0;
  std::vector<double> factors(static_cast<size_t>(state.lines));
  double squares = 0, scaled = 0;
  for (int64_t line = 0; line < state.lines; ++line) {
    double mean = 0;
    for (int64_t i = 0; i < length; ++i)
      mean += at(place(line, i)) * at(place(line, i)) / static_cast<double>(length);
    double moment = mean;
    if (moments) {
      moment = beta2 * static_cast<double>(state.moments[line]) + (1 - beta2) * mean;
      if (mean == 0 && moment < 0x1p-126) moment = 0;
      state.staged[line] = static_cast<float>(moment);
    }
    const double factor = one_factor ? 1 : 1 / (std::sqrt(moment) + 1e-10);
    factors[static_cast<size_t>(line)] = factor;
    squares += mean * static_cast<double>(length);
    scaled += mean * factor * factor * static_cast<double>(length);
  }
  const double target = static_cast<double>(state.target);
  const double restore = one_factor ? target / std::fmax(std::sqrt(squares), 1e-6)
                                    : target * std::sqrt(squares) / (std::sqrt(scaled) + 1e-10);
  for (int64_t line = 0; line < state.lines; ++line) {
    const double factor = factors[static_cast<size_t>(line)] * restore;
    state.factors[line] = static_cast<float>(factor);
    for (int64_t i = 0; i < length; ++i)
      store(m.data, m.dtype, place(line, i), static_cast<float>(at(place(line, i)) * factor));
  }
}

}  // namespace

void ReferenceOps::normuon(Stream&, const MatrixBatch& matrices,
                           std::span<const NormuonState> states, const StepTables& tables) {
  MatrixBatch one = matrices;
  for (const NormuonState& state : states) {
    const bool sits_out = state.rule == LineRule::kNormuon && !tables.params[state.param].active;
    if (state.lines > 0 && !sits_out) normuon_of(one, state, tables.groups);
    one.data = static_cast<char*>(one.data) + one.stride * size_of(one.dtype);
  }
}

void ReferenceOps::commit_normuon(Stream&, std::span<const NormuonState> states,
                                  const ParamView* params, const Verdict& verdict) {
  for (const NormuonState& state : states)
    if (state.lines > 0 && verdict.passes() && params[state.param].active)
      std::copy_n(state.staged, state.lines, state.moments);
}

}  // namespace reference
