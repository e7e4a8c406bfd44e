#pragma once

#include <vector>

#include "ops/subjects.hpp"

// Test data for ops: parameters of all dtypes and alignments, cut into blocks. Every machine gets
// the same data.
namespace ops_test {

struct FixtureParam {
  int64_t rows, cols;
  muonrt::DType dtype = muonrt::DType::kF32, grad_dtype = muonrt::DType::kF32;
  bool master = false, active = true;
  int32_t group = 0;
  int64_t offset = 0;       // offset of every buffer from an aligned address, in elements
  int64_t grad_offset = 0;  // offset of the gradient, in addition to `offset`
  muonrt::WeightForm form = muonrt::WeightForm::kParamOnly;  // used if `master` is false
  muonrt::DType momentum_dtype = muonrt::DType::kF32;
  bool clipped = false;          // whether the parameter's rows have QK-clip factors
  int64_t remainder_offset = 0;  // offset of the remainder, in addition to `offset`
};

struct Fixture {
  std::vector<FixtureParam> params;
  std::vector<muonrt::ShardBlock> blocks;
  std::vector<muonrt::MuonScalars> groups;
  std::vector<muonrt::AdamScalars> adam;  // one for each parameter
  int64_t message_elements = 0;
  // One array for each parameter.
  std::vector<Bytes> data, grad, master, momentum, variance, remainder, factors;

  /// Sets element i of the gradient of `param`.
  void set_grad(size_t param, int64_t i, float x) {
    set_value(grad[param], params[param].grad_dtype, i, x);
  }
};

/// Returns parameters that are whole, or cut into bands of rows, bands of columns, or blocks. They
/// cover all four pairs of dtypes, with and without master weights, aligned and unaligned.
/// Parameter 4 is inactive and has no gradient.
Fixture make_fixture(uint64_t seed);
/// Returns the fixture of make_fixture() with additional parameters: all forms of bf16 weights,
/// bf16 momentum, and rows with factors.
Fixture make_fixture_of_forms(uint64_t seed);
/// Returns three parameters of 5 x 7. In the message, the last parameter comes first, and column 0
/// of the second parameter is missing.
Fixture make_small_fixture(uint64_t seed);
/// Replaces bf16 momentum with f32, which AdamW needs.
void use_f32_momentum(Fixture& fixture);
std::vector<int32_t> all_params(const Fixture& fixture);

constexpr int64_t kWorld = 3, kFingerprint = 0x7123456789abcdef;
/// Returns the vote sum if all kWorld ranks accept the step.
inline muonrt::Vote consent() {
  muonrt::Vote sum{};
  sum.consent = kWorld;
  sum.fingerprint =
      static_cast<int64_t>(static_cast<uint64_t>(kWorld) * static_cast<uint64_t>(kFingerprint));
  return sum;
}

/// A fixture whose buffers are in a machine's memory.
struct OnMachine {
  OnMachine(Machine& machine, const Fixture& fixture);
  /// Returns the bytes of every buffer that a commit may write, parameter by parameter.
  std::vector<Bytes> state();
  /// Removes the momentum from the views, to model a rank whose momentum is stored by an owner.
  /// leave_out_weights() removes the weights, to model an owner that holds no weights.
  void leave_out_momentum();
  void leave_out_weights();

  Machine& machine;
  const Fixture& fixture;
  std::vector<muonrt::ParamView> host_views;
  muonrt::ParamView* views = nullptr;
  muonrt::MuonScalars* groups = nullptr;
  muonrt::AdamScalars* adam = nullptr;
};

}  // namespace ops_test
