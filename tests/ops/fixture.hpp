#pragma once

#include <vector>

#include "ops/subjects.hpp"

// Parameters of all dtypes and alignments, cut into blocks; equal on every machine.
namespace ops_test {

struct FixtureParam {
  int64_t rows, cols;
  muonrt::DType dtype = muonrt::DType::kF32, grad_dtype = muonrt::DType::kF32;
  bool master = false, active = true;
  int32_t group = 0;
  int64_t offset = 0;       // elements between an aligned address and every buffer
  int64_t grad_offset = 0;  // of the gradient, in addition to `offset`
  muonrt::WeightForm form = muonrt::WeightForm::kParamOnly;  // if `master` is false
  muonrt::DType momentum_dtype = muonrt::DType::kF32;
  bool clipped = false;          // whether its rows have QK-clip factors
  int64_t remainder_offset = 0;  // of the remainder, in addition to `offset`
};

struct Fixture {
  std::vector<FixtureParam> params;
  std::vector<muonrt::ShardBlock> blocks;
  std::vector<muonrt::MuonScalars> groups;
  std::vector<muonrt::AdamScalars> adam;  // by parameter
  int64_t message_elements = 0;
  std::vector<Bytes> data, grad, master, momentum, variance, remainder, factors;  // by parameter

  /// Sets element i of the gradient of `param`.
  void set_grad(size_t param, int64_t i, float x) {
    set_value(grad[param], params[param].grad_dtype, i, x);
  }
};

/// Whole parameters, bands of rows, bands of columns and blocks, in all four pairs of dtypes, with
/// and without master weights, aligned and unaligned. Parameter 4 is inactive and has no gradient.
Fixture make_fixture(uint64_t seed);
/// As make_fixture, with all forms of bf16 weights, bf16 momentum, and rows with factors.
Fixture make_fixture_of_forms(uint64_t seed);
/// Three parameters of 5 x 7. The last comes first in the message. Column 0 of the second parameter
/// is not in the message.
Fixture make_small_fixture(uint64_t seed);
/// Replaces bf16 momentum by f32, which AdamW needs.
void use_f32_momentum(Fixture& fixture);
std::vector<int32_t> all_params(const Fixture& fixture);

constexpr int64_t kWorld = 3, kFingerprint = 0x7123456789abcdef;
/// The vote sum of kWorld ranks that all accept the step.
inline muonrt::Vote consent() {
  muonrt::Vote sum{};
  sum.consent = kWorld;
  sum.fingerprint =
      static_cast<int64_t>(static_cast<uint64_t>(kWorld) * static_cast<uint64_t>(kFingerprint));
  return sum;
}

/// A fixture on a machine.
struct OnMachine {
  OnMachine(Machine& machine, const Fixture& fixture);
  /// Bytes of every buffer that a commit may write, parameter by parameter.
  std::vector<Bytes> state();
  /// Makes the views those of a rank whose momentum is on an owner, or those of the owner.
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
