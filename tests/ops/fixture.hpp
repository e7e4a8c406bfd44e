#pragma once

#include <vector>

#include "ops/subjects.hpp"

// Parameters of all dtypes at all places, cut into pieces: the same on every machine.
namespace ops_test {

struct FixtureParam {
  int64_t rows, cols;
  muonrt::DType dtype = muonrt::DType::kF32, grad_dtype = muonrt::DType::kF32;
  bool master = false, active = true;
  int32_t group = 0;
  int64_t offset = 0;       // elements between an aligned address and every buffer
  int64_t grad_offset = 0;  // the gradient, in addition
  muonrt::WeightForm form = muonrt::WeightForm::kParamOnly;  // of one without a master
  muonrt::DType momentum_dtype = muonrt::DType::kF32;
  bool clipped = false;          // its rows have factors
  int64_t remainder_offset = 0;  // the remainder, in addition to `offset`
};

struct Fixture {
  std::vector<FixtureParam> params;
  std::vector<muonrt::ShardBlock> blocks;
  std::vector<muonrt::MuonScalars> groups;
  std::vector<muonrt::AdamScalars> adam;  // by parameter
  int64_t message_elements = 0;
  std::vector<Bytes> data, grad, master, momentum, variance, remainder, factors;  // by parameter

  /// Element (param, i) of the gradient.
  void set_grad(size_t param, int64_t i, float x) {
    set_value(grad[param], params[param].grad_dtype, i, x);
  }
};

/// Whole parameters, bands of rows, bands of columns and blocks, in all four pairs of dtypes, with
/// and without master weights, at aligned and odd places; parameter 4 is inactive and has no
/// gradient.
Fixture make_fixture(uint64_t seed);
/// The same with all forms of bf16 weights, bf16 momentum, rows with factors.
Fixture make_fixture_of_forms(uint64_t seed);
/// Three parameters of 5 x 7. The last is in the message first; of the second column 0 is not.
Fixture make_small_fixture(uint64_t seed);
/// AdamW has no bf16 momentum.
void use_f32_momentum(Fixture& fixture);
std::vector<int32_t> all_params(const Fixture& fixture);

constexpr int64_t kWorld = 3, kFingerprint = 0x7123456789abcdef;
/// The sum of the ballots of kWorld ranks that all consent.
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
  /// Views as they are if an owner keeps the momentum, and as the owner's are.
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
