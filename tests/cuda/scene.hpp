#pragma once

#include <vector>

#include "cuda/machine.hpp"

// Parameters of all dtypes in all places, cut into pieces: the same on every machine.
namespace cuda_test {

struct SceneParam {
  int64_t rows, cols;
  muonrt::DType dtype = muonrt::DType::kF32, grad_dtype = muonrt::DType::kF32;
  bool master = false, active = true;
  int32_t group = 0;
  int64_t offset = 0;       // elements that every buffer lies behind an aligned address
  int64_t grad_offset = 0;  // the gradient, in addition
  muonrt::WeightForm form = muonrt::WeightForm::kPlain;  // of one without a master
  muonrt::DType momentum_dtype = muonrt::DType::kF32;
  bool clipped = false;          // its rows have factors
  int64_t remainder_offset = 0;  // the remainder, in addition to `offset`
};

struct Scene {
  std::vector<SceneParam> params;
  std::vector<muonrt::Piece> pieces;
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
/// and without master weights, at aligned and odd places; parameter 4 sits out.
Scene make_scene(uint64_t seed);
/// The same with bf16 weights as they may be kept, bf16 momentum, rows with factors.
Scene make_scene_of_forms(uint64_t seed);

constexpr int64_t kWorld = 3, kStamp = 0x7123456789abcdef;
/// What kWorld ranks' ballots add up to; without `yes` one of them does not consent.
inline muonrt::Ballot consent(bool yes = true) {
  muonrt::Ballot sum{};
  sum.consent = yes ? kWorld : kWorld - 1;
  sum.stamp = static_cast<int64_t>(static_cast<uint64_t>(kWorld) * static_cast<uint64_t>(kStamp));
  return sum;
}

/// A scene on a machine.
struct Stage {
  Stage(Machine& machine, const Scene& scene);
  /// Bytes of every buffer that a commit may write, parameter by parameter.
  std::vector<Bytes> state();

  Machine& machine;
  const Scene& scene;
  std::vector<muonrt::ParamView> host_views;
  muonrt::ParamView* views = nullptr;
  muonrt::MuonScalars* groups = nullptr;
  muonrt::AdamScalars* adam = nullptr;
};

}  // namespace cuda_test
