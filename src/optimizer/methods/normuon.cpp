#include "optimizer/methods/normuon.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "backend/local_stream.hpp"
#include "backend/ops.hpp"
#include "base/checked.hpp"
#include "base/hash.hpp"
#include "optimizer/state.hpp"

namespace muonrt {

namespace {

/// Returns the matrix with outputs as rows, as in the settings.
Matrix outputs_first(const OptimizerSettings& settings, Matrix m) {
  if (settings.params[static_cast<size_t>(m.param)].transposed) std::swap(m.rows, m.cols);
  return m;
}

/// Returns whether the rows or the columns of a matrix are normalized, or kOff if neither is.
NormuonAxis axis_of(const OptimizerSettings& settings, const Matrix& m) {
  const ParamSettings& p = settings.params[static_cast<size_t>(m.param)];
  const GroupSettings& g = settings.groups[static_cast<size_t>(p.group)];
  NormuonAxis axis = g.normuon_axis;
  if (axis == NormuonAxis::kOff) return axis;
  if (p.normuon_axis != NormuonAxis::kOff) axis = p.normuon_axis;
  if (!p.parts.empty()) {
    const PartSettings& part = p.parts[static_cast<size_t>(m.index) % p.parts.size()];
    if (part.normuon_axis != NormuonAxis::kOff) axis = part.normuon_axis;
  }
  if (axis != NormuonAxis::kLonger) return axis;
  return m.rows >= m.cols ? NormuonAxis::kRows : NormuonAxis::kColumns;
}

/// Returns the number of neurons of a matrix. If the matrix has only one row or one column, the
/// number is 0 for both axes: a single neuron could not be compared with others, and neurons of one
/// element would all become 1 or -1.
int64_t neurons_of(NormuonAxis axis, const Matrix& m) {
  if (axis == NormuonAxis::kOff || std::min(m.rows, m.cols) == 1) return 0;
  return axis == NormuonAxis::kRows ? m.rows : m.cols;
}

/// Returns the number of elements, with padding, in each of the three lists of a parameter:
/// moments, staged moments, and factors.
int64_t padded(int64_t neurons) { return round_up(neurons, 64); }

/// Returns the parts of one matrix of a parameter, or the matrix itself if it has no parts.
std::vector<Matrix> parts_of_one(const OptimizerSettings& settings, int32_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  const auto [rows, cols] = outputs_and_inputs(p);
  std::vector<Matrix> out(std::max<size_t>(1, p.parts.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    Matrix& m = out[i] = Matrix{};
    m.param = param;
    m.index = static_cast<int64_t>(i);
    m.rows = p.parts.empty() ? rows : length(p.parts[i].rows);
    m.cols = p.parts.empty() ? cols : length(p.parts[i].cols);
  }
  return out;
}

}  // namespace

int64_t normuon_neurons(const OptimizerSettings& settings, int32_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  if (settings.groups[static_cast<size_t>(p.group)].normuon_axis == NormuonAxis::kOff) return 0;
  int64_t neurons = 0;
  for (const Matrix& m : parts_of_one(settings, param))
    neurons += neurons_of(axis_of(settings, m), m);
  return p.view == View::kStack ? checked_mul(neurons, p.layout.shape()[0]) : neurons;
}

uint64_t normuon_digest(const OptimizerSettings& settings, int32_t param) {
  const ParamSettings& p = settings.params[static_cast<size_t>(param)];
  Hash hash;
  hash.value(normuon_neurons(settings, param));
  for (const Matrix& m : parts_of_one(settings, param)) {
    const NormuonAxis axis = axis_of(settings, m);
    const auto i = static_cast<size_t>(m.index);
    const Runs all = whole(axis == NormuonAxis::kRows ? m.rows : m.cols);
    const Runs& neurons = p.parts.empty()              ? all
                          : axis == NormuonAxis::kRows ? p.parts[i].rows
                                                       : p.parts[i].cols;
    hash.value(static_cast<int64_t>(axis));
    hash.value(int64_t{p.transposed});
    for (const Run& run : neurons) hash.value(run.begin), hash.value(run.end);
  }
  return hash.digest();
}

int64_t normuon_bytes(int64_t neurons) { return checked_mul(3 * padded(neurons), 4); }

NormuonMemory::NormuonMemory(Device& device, const OptimizerSettings& settings, const Plan& plan,
                             int rank)
    : states_(plan.matrices().size()),
      moments_(settings.params.size(), nullptr),
      neurons_(settings.params.size(), 0) {
  std::set<int32_t> owned;
  std::vector<bool> owns_any(settings.params.size(), false);
  for (const RankChunk& chunk : plan.rank_chunks(rank)) {
    for (const OwnedMatrix& o : chunk.owned) {
      owned.insert(o.matrix);
      owns_any[static_cast<size_t>(plan.matrices()[static_cast<size_t>(o.matrix)].param)] = true;
    }
  }
  std::vector<int64_t> first(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    const Matrix m = outputs_first(settings, plan.matrices()[i]);
    const NormuonAxis axis = axis_of(settings, m);
    NormuonState& state = states_[i];
    state.neurons = neurons_of(axis, m);
    // A gathered matrix is stored with its short side as rows; if it is square, its outputs are the
    // rows (see OwnedMatrix::transposed()). The rows of a tall matrix are therefore stored as
    // columns.
    state.stored_rows = (axis == NormuonAxis::kRows) == (m.rows <= m.cols);
    state.param = m.param;
    state.group = settings.params[static_cast<size_t>(m.param)].group;
    // If each replica has its own owner, the plan lists the copies of a matrix one after the other.
    // All copies use the same range.
    const Matrix* before = i > 0 ? &plan.matrices()[i - 1] : nullptr;
    if (before && before->param == m.param && before->index == m.index) {
      first[i] = first[i - 1];
      continue;
    }
    first[i] = neurons_[static_cast<size_t>(m.param)];
    neurons_[static_cast<size_t>(m.param)] += state.neurons;
  }
  int64_t total = 0;
  for (size_t p = 0; p < owns_any.size(); ++p) total += owns_any[p] ? 3 * padded(neurons_[p]) : 0;
  for (size_t i = 0; i < states_.size(); ++i)
    if (!owned.count(static_cast<int32_t>(i))) states_[i].neurons = 0;
  if (total == 0) return;
  memory_ = Buffer(device, checked_mul(total, 4));
  float* at = memory_.as<float>();
  for (size_t p = 0; p < owns_any.size(); ++p) {
    if (!owns_any[p] || neurons_[p] == 0) continue;
    moments_[p] = at;
    at += 3 * padded(neurons_[p]);
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    NormuonState& state = states_[i];
    if (state.neurons == 0) continue;
    const auto p = static_cast<size_t>(state.param);
    state.moments = moments_[p] + first[i];
    state.staged = state.moments + padded(neurons_[p]);
    state.factors = state.staged + padded(neurons_[p]);
  }
  LocalStream(device).run(
      [&](Stream& stream) { device.ops().fill(stream, memory_.data(), 0, memory_.bytes()); });
}

std::vector<StateRange> NormuonMemory::ranges(const Plan& plan, int32_t param) const {
  std::vector<StateRange> out;
  for (size_t i = 0; i < states_.size(); ++i) {
    const NormuonState& state = states_[i];
    if (state.param == param && state.neurons > 0)
      out.push_back({plan.matrices()[i].index, state.moments - moments(param), state.neurons});
  }
  return out;
}

}  // namespace muonrt
