#include "command/verify/expected.hpp"

#include <algorithm>
#include <cmath>

#include "reference/reference.hpp"
#include "support/tolerances.hpp"

namespace muonrt::tool {

namespace {

using reference::Matrix;

/// The elements of one matrix of a tensor. Its rows have `cols` elements and begin at these
/// indices.
struct Elements {
  std::vector<int64_t> rows;
  int64_t cols;
};

std::vector<Elements> matrices_of(const ModelTensor& t) {
  const size_t first = t.stack() ? 1 : 0;
  const int64_t stacked = t.stack() ? t.shape[0] : 1, rows = t.shape[first];
  const int64_t cols = t.elements() / stacked / rows;
  std::vector<RowBlock> parts = t.parts;
  if (parts.empty()) parts = {{"", {{0, rows}}}};
  std::vector<Elements> out;
  for (int64_t e = 0; e < stacked; ++e) {
    for (const RowBlock& part : parts) {
      Elements elements{{}, cols};
      for (const auto& [begin, end] : part.rows) {
        for (int64_t r = begin; r < end; ++r) elements.rows.push_back((e * rows + r) * cols);
      }
      out.push_back(std::move(elements));
    }
  }
  return out;
}

Matrix take(const std::vector<double>& from, const Elements& elements) {
  Matrix out(static_cast<int64_t>(elements.rows.size()), elements.cols);
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      out(r, c) = from[static_cast<size_t>(elements.rows[static_cast<size_t>(r)] + c)];
    }
  }
  return out;
}

void put(std::vector<double>& to, const Elements& elements, const Matrix& from) {
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t c = 0; c < from.cols; ++c) {
      to[static_cast<size_t>(elements.rows[static_cast<size_t>(r)] + c)] = from(r, c);
    }
  }
}

std::vector<double> values(uint64_t seed, int64_t count, int64_t step, bool half) {
  Matrix out(1, count);
  for (int64_t i = 0; i < count; ++i) out(0, i) = reference::value_at(seed, 0, i, step);
  return half ? reference::rounded(out, DType::kBF16).v : out.v;
}

double largest(const std::vector<double>& list) {
  double out = 0;
  for (const double x : list) out = std::max(out, std::fabs(x));
  return out;
}

/// Returns the largest allowed error of an element of an orthogonalized matrix. In f32, it is
/// tolerance::newton_schulz_f32, and with bf16 iterates tolerance::newton_schulz_bf16. With bf16
/// messages, a value near the midpoint of two bf16 values may be rounded in the other direction. In
/// the result, such a rounding adds an error of one bf16 unit, which is 2^-7 for an entry near 1.
/// In the input, it changes one entry of the normalized matrix by a relative error of 2^-8, and the
/// polynomial amplifies this error if singular values are small. The bound therefore contains two
/// bf16 units, 2^-6.
double entry_tolerance(const Rounding& rounding, double gain, int64_t short_side) {
  double out = tolerance::newton_schulz_f32(gain);
  if (rounding.half_transport) out += 0x1p-6;
  if (rounding.half_iteration) out += tolerance::newton_schulz_bf16(short_side);
  return out;
}

constexpr double kF32 = 0x1p-22;  // a few f32 rounding errors, relative to the largest value

}  // namespace

std::vector<Expected> reference_steps(const std::vector<ModelTensor>& tensors,
                                      const Rounding& rounding, int steps, double lr) {
  reference::Muon muon;
  muon.lr = lr;
  muon.list = reference::lists::kPolarModded;
  muon.safety = 1.02;
  muon.transport = rounding.half_transport ? DType::kBF16 : DType::kF32;
  reference::AdamW adamw;
  adamw.lr = lr;
  const double gain = reference::gain(muon.list, muon.safety);
  std::vector<Expected> out;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t numel = tensors[t].elements();
    Expected& e = out.emplace_back();
    e.data = values(tensors[t].seed(), numel, -1, rounding.half_data);
    e.momentum.assign(static_cast<size_t>(numel), 0.0);
    if (!tensors[t].muon) e.variance = e.momentum;
    double moved = 0;  // largest error of a weight that the errors of all updates can cause
    // the largest gradient, because terms of a sum may cancel, but their rounding errors do not
    double slope = 0;
    for (int step = 0; step < steps; ++step) {
      const std::vector<double> grad = values(tensors[t].seed(), numel, step, rounding.half_grad);
      slope = std::max(slope, largest(grad));
      if (!tensors[t].muon) {
        reference::adamw_step(adamw, step + 1, e.data, e.momentum, e.variance, grad);
        continue;
      }
      double worst = 0;
      for (const Elements& elements : matrices_of(tensors[t])) {
        Matrix w = take(e.data, elements), m = take(e.momentum, elements);
        reference::muon_step(muon, w, m, take(grad, elements));
        put(e.data, elements, w);
        put(e.momentum, elements, m);
        const double rate = lr * reference::scale_factor(muon.scale, w.rows, w.cols);
        worst = std::max(worst, rate * entry_tolerance(rounding, gain, std::min(w.rows, w.cols)));
      }
      moved += worst;
    }
    const double roundings = kF32 * (steps + 1);
    e.tolerance = moved + roundings * (1 + largest(e.data));
    // The parameter is the master weight, rounded once.
    if (rounding.half_data) e.tolerance += tolerance::roundoff(DType::kBF16) * largest(e.data);
    e.momentum_tolerance =
        roundings * slope * (1 - (tensors[t].muon ? muon.momentum : adamw.beta1));
    e.variance_tolerance = roundings * slope * slope * (1 - adamw.beta2);
  }
  return out;
}

}  // namespace muonrt::tool
