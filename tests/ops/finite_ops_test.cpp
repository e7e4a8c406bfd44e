#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/fixture.hpp"

// Tests, on every backend, that each commit op reports non-finite values.

using namespace muonrt;
using namespace ops_test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Written {
  WeightForm form;
  DType dtype;
  float value;
  bool finite;  // whether the stored value is finite
};

/// Returns values around the largest finite value of each stored form. From the midpoint between
/// the largest bf16 value and 2^128 upward, rounding to nearest gives infinity, but stochastic
/// rounding does not.
std::vector<Written> ends() {
  const float largest = std::numeric_limits<float>::max();
  const float half = 0x1.ffp127f, below = std::nextafter(half, 0.0f);
  std::vector<Written> out;
  for (const float sign : {1.0f, -1.0f}) {
    for (const bool master : {false, true}) {
      const WeightForm form = master ? WeightForm::kMaster : WeightForm::kParamOnly;
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

bool is_adamw(Verb verb) { return verb == Verb::kAdamW || verb == Verb::kAdamWPieces; }

/// Makes the op write `w.value` as element `at` of `n`, and zeros as the other elements. Returns
/// the number of non-finite values that the op reports.
int64_t noted(Machine& machine, Verb verb, const Written& w, int64_t n, int64_t at) {
  const std::vector<float> zeros(static_cast<size_t>(n));
  std::vector<float> grad = zeros, values = zeros;
  AdamScalars adam;
  MuonScalars muon;
  if (is_adamw(verb)) {  // the update has magnitude 1 and the opposite sign of the gradient
    adam.beta1 = adam.beta2 = adam.eps = 0.0f;
    adam.rate = std::fabs(w.value);
    grad[static_cast<size_t>(at)] = std::signbit(w.value) ? 1.0f : -1.0f;
  } else {
    muon.rate = 1.0f;
    values[static_cast<size_t>(at)] = verb == Verb::kValues ? w.value : -w.value;
  }
  ParamView view;
  view.param = machine.put(zeros);
  view.grad = machine.put(grad);
  view.momentum = machine.put(zeros);
  view.variance = machine.put(zeros);
  view.numel = n;
  view.param_dtype = w.dtype;
  view.form = w.form;
  if (w.form == WeightForm::kMaster) view.master = machine.put(zeros);
  if (w.form == WeightForm::kRemainder)
    view.remainder = reinterpret_cast<uint16_t*>(machine.put(zeros));
  ShardBlock block{};
  block.rows = 1;
  block.cols = block.local_ld = block.tensor_ld = n;
  block.update_scale = 1.0f;
  const std::vector<ShardBlock> blocks(verb == Verb::kAdamW ? 0 : 1, block);
  const std::vector<int32_t> list(verb == Verb::kAdamW ? 1 : 0);
  auto* findings = machine.put_one(Findings{});
  const StepTables tables{machine.put_one(view), machine.put_one(muon), machine.put_one(adam)};
  const ConstTypedBuffer wire{.data = machine.put(values), .dtype = DType::kF32};
  const CommitCondition condition{.sum = machine.put_one(consent()),
                                  .world = kWorld,
                                  .fingerprint = kFingerprint,
                                  .findings = findings};
  Ops& ops = machine.ops();
  if (verb == Verb::kMuon) ops.commit_muon(machine.on(), blocks, tables, wire, condition);
  if (verb == Verb::kUpdate) ops.commit_update(machine.on(), blocks, tables, wire, condition);
  if (verb == Verb::kValues)
    ops.commit_values(machine.on(), blocks, tables.params, wire, condition);
  if (is_adamw(verb)) ops.commit_adamw(machine.on(), list, blocks, tables, condition);
  machine.finish();
  const Findings found = machine.get_one(findings);
  CHECK(found.nonfinite == 0);
  return found.wrote_nonfinite;
}

}  // namespace

TEST_CASE("commit: every commit op notes a weight that is not finite as stored", "[ops]") {
  for (const Subject& subject : subjects()) {
    for (const Verb verb :
         {Verb::kMuon, Verb::kUpdate, Verb::kValues, Verb::kAdamW, Verb::kAdamWPieces}) {
      for (const Written& w : ends()) {
        if (verb == Verb::kValues && w.form == WeightForm::kStochastic) continue;
        if (is_adamw(verb) && std::isnan(w.value)) continue;
        CAPTURE(subject.name, static_cast<int>(verb), static_cast<int>(w.form), name_of(w.dtype),
                w.value);
        Machine machine(subject.make());
        // With these sizes, the op processes both vectors of 8 elements and single elements. `at`
        // is the first element, one in the middle, or the last one.
        for (const auto& [n, at] : {std::pair<int64_t, int64_t>{1, 0},
                                    {1040, 0},
                                    {1040, 517},
                                    {1040, 1039},
                                    {1043, 1042}})
          CHECK(noted(machine, verb, w, n, at) == (w.finite ? 0 : 1));
      }
    }
  }
}
