#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/backends.hpp"

// What commits note of what they write, verb by verb, on every backend.

using namespace muonrt;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Written {
  WeightForm form;
  DType dtype;
  float value;
  bool finite;  // once stored
};

/// The ends of what is finite once stored: a bf16 is rounded, to infinity from half-way between its
/// largest value and 2^128 on; at random it is not.
std::vector<Written> ends() {
  const float largest = std::numeric_limits<float>::max();
  const float half = 0x1.ffp127f, below = std::nextafter(half, 0.0f);
  std::vector<Written> out;
  for (const float sign : {1.0f, -1.0f}) {
    for (const bool master : {false, true}) {
      const WeightForm form = master ? WeightForm::kMaster : WeightForm::kPlain;
      out.push_back({form, DType::kF32, sign * largest, true});
      out.push_back({form, DType::kF32, sign * kInf, false});
      out.push_back({form, DType::kBF16, sign * below, true});
      out.push_back({form, DType::kBF16, sign * half, false});
    }
    out.push_back({WeightForm::kRemainder, DType::kBF16, sign * below, true});
    out.push_back({WeightForm::kRemainder, DType::kBF16, sign * half, false});
    out.push_back({WeightForm::kStochastic, DType::kBF16, sign * largest, true});
    out.push_back({WeightForm::kStochastic, DType::kBF16, sign * kInf, false});
  }
  out.push_back({WeightForm::kRemainder, DType::kBF16, kNan, false});
  return out;
}

enum class Verb { kMuon, kUpdate, kValues, kAdamW, kAdamWPieces };

/// What the verb notes where it writes `w.value` as element `at` of `n`, and zeros elsewhere.
int64_t noted(backends::Backend& backend, Verb verb, const Written& w, int64_t n, int64_t at) {
  struct Tables {
    ParamView view;
    MuonScalars muon;
    AdamScalars adam;
    Ballot sum;
    Findings findings;
  };
  const auto size = static_cast<size_t>(n);
  const auto memory = backend.memory(sizeof(Tables));
  auto* const t = new (memory.get()) Tables();
  const auto floats = [&] {
    auto out = backend.memory(n * 4);
    std::memset(out.get(), 0, size * 4);
    return out;
  };
  const auto param = floats(), master = floats(), low = floats(), momentum = floats(),
             variance = floats(), grad = floats(), message = floats();
  auto* const g = static_cast<float*>(grad.get());
  auto* const o = static_cast<float*>(message.get());
  t->view.param = param.get();
  t->view.grad = grad.get();
  t->view.momentum = momentum.get();
  t->view.variance = static_cast<float*>(variance.get());
  t->view.numel = n;
  t->view.param_dtype = w.dtype;
  t->view.form = w.form;
  if (w.form == WeightForm::kMaster) t->view.master = static_cast<float*>(master.get());
  if (w.form == WeightForm::kRemainder) t->view.remainder = static_cast<uint16_t*>(low.get());
  t->sum = {.consent = 1, .stamp = 5};
  const bool adam = verb == Verb::kAdamW || verb == Verb::kAdamWPieces;
  if (adam) {  // a step of one against the gradient's sign
    t->adam = {.beta1 = 0.0f, .beta2 = 0.0f, .eps = 0.0f, .rate = std::fabs(w.value)};
    g[at] = std::signbit(w.value) ? 1.0f : -1.0f;
  } else {
    t->muon.rate = 1.0f;
    o[at] = verb == Verb::kValues ? w.value : -w.value;
  }
  Piece piece{};
  piece.rows = 1;
  piece.cols = piece.local_ld = piece.tensor_ld = n;
  piece.update_scale = 1.0f;
  const std::vector<Piece> pieces = {piece}, none;
  const std::vector<int32_t> list = {0}, nothing;
  const StepTables tables{&t->view, &t->muon, &t->adam};
  const ConstWire wire{.data = message.get(), .dtype = DType::kF32};
  Ops& ops = *backend.ops;
  Stream& stream = *backend.stream;
  const Verdict verdict{.sum = &t->sum, .world = 1, .stamp = 5, .findings = &t->findings};
  switch (verb) {
    case Verb::kMuon:
      ops.commit_muon(stream, pieces, tables, wire, verdict);
      break;
    case Verb::kUpdate:
      ops.commit_update(stream, pieces, tables, wire, verdict);
      break;
    case Verb::kValues:
      ops.commit_values(stream, pieces, &t->view, wire, verdict);
      break;
    case Verb::kAdamW:
    case Verb::kAdamWPieces:
      ops.commit_adamw(stream, verb == Verb::kAdamW ? list : nothing,
                       verb == Verb::kAdamW ? none : pieces, tables, verdict);
      break;
  }
  backend.wait();
  CHECK(t->findings.nonfinite == 0);
  return t->findings.written;
}

}  // namespace

TEST_CASE("commit: a weight that is not finite as stored is noted by every verb",
          "[unit][reference-ops]") {
  for (auto& backend : backends::all()) {
    for (const Verb verb :
         {Verb::kMuon, Verb::kUpdate, Verb::kValues, Verb::kAdamW, Verb::kAdamWPieces}) {
      for (const Written& w : ends()) {
        const bool adam = verb == Verb::kAdamW || verb == Verb::kAdamWPieces;
        if (verb == Verb::kValues && w.form == WeightForm::kStochastic) continue;
        if (adam && std::isnan(w.value)) continue;
        INFO(backend.name << ", verb " << static_cast<int>(verb) << ", form "
                          << static_cast<int>(w.form) << ", " << name_of(w.dtype) << ", "
                          << w.value);
        // By vectors of 8 and one by one; the first, one within, the last.
        for (const auto& [n, at] : {std::pair<int64_t, int64_t>{1, 0},
                                    {1040, 0},
                                    {1040, 517},
                                    {1040, 1039},
                                    {1043, 1042}})
          CHECK(noted(backend, verb, w, n, at) == (w.finite ? 0 : 1));
      }
    }
  }
}
