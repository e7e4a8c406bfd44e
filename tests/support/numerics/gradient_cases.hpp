#pragma once

#include "support/world.hpp"

/// Cases with parameters of all kinds, whose gradients are partial or have a separate layout.
namespace gradients {

using namespace muonrt;

/// Placements of the parameters and of their gradients. If `grads` is empty, the gradients have the
/// same placements as the parameters.
struct Lay {
  std::string name;
  std::vector<int64_t> mesh;
  std::vector<Placement> params, grads;
  std::vector<int32_t> ranks;
};

/// Number of matrices of all parameters that `make` creates: tall, wide, three experts, gate and
/// up, twin, one, plain.
inline constexpr int64_t kMatrices = 1 + 1 + 3 + 2 + 1 + 1 + 1;

/// @param half           If true, all gradients are bf16, including partial ones, and every second
///     parameter is bf16 with master weights.
/// @param partial_grads  Number of partial gradients of each parameter. The last parameter,
///     "plain", has none.
/// @param summed         If true, the case is for one rank, whose gradient is the f32 sum of the
///     rounded partial gradients.
inline world::Case make(const Lay& lay, bool half, int partial_grads, bool summed = false) {
  world::Case c = world::on_mesh(lay.mesh, lay.ranks);
  c.settings.chunk_bytes = 2048;
  c.settings.poison = true;
  c.steps = 3;
  c.inactive_params = {{}, {1, 6}, {}};
  const auto add = [&](const char* name, std::vector<int64_t> shape, Role role,
                       View view = View::kNone, std::vector<PartSettings> parts = {}) {
    world::Param p = world::matrix(name, std::move(shape), lay.params);
    p.role = role;
    p.view = view;
    p.parts = std::move(parts);
    p.grad_placements = lay.grads;
    p.partial_grads = partial_grads;
    if (half) {
      p.partial_grad_dtype = DType::kBF16;
      if (!summed || partial_grads == 1) p.grad_dtype = DType::kBF16;
      if (c.params.size() % 2 == 0) p.dtype = DType::kBF16;
    }
    c.params.push_back(std::move(p));
  };
  add("tall", {37, 11}, Role::kMuon);
  add("wide", {8, 40}, Role::kMuon);
  add("experts", {3, 7, 6}, Role::kMuon, View::kStack);
  add("gate_up", {18, 7}, Role::kMuon, View::kNone,
      {{"gate", Runs({{0, 9}}), whole(7), 1.0}, {"up", Runs({{9, 18}}), whole(7), 1.0}});
  add("twin", {8, 40}, Role::kMuon);
  add("bias", {53}, Role::kAdamW);
  add("embedding", {29, 12}, Role::kAdamW);
  add("head", {70, 50}, Role::kAdamW);
  add("cube", {4, 5, 6}, Role::kAdamW);
  add("one", {1, 1}, Role::kMuon);
  c.params.push_back(world::matrix("plain", {12, 10}, lay.params));
  for (Placement& p : c.params.back().placements) {
    if (p.kind == PlacementKind::kPartial) p = {PlacementKind::kReplicate, 0, 1};
  }
  return c;
}

/// Returns the same case for one rank.
inline world::Case alone(bool half, int partial_grads) {
  return make({"alone", {1}, {}, {}, {}}, half, partial_grads, true);
}

}  // namespace gradients
