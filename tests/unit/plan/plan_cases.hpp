#pragma once

// Planning problems for the planner's tests.

#include <memory>

#include "optimizer/settings/settings.hpp"
#include "plan/plan.hpp"
#include "unit/layout/layout_random.hpp"

namespace plan_case {

using muonrt::Layout;
using muonrt::ParamSpec;
using muonrt::Plan;
using muonrt::Problem;
using random_layout::pick;

inline std::shared_ptr<const muonrt::Mesh> mesh(std::vector<int64_t> shape,
                                                std::vector<int32_t> ranks = {}) {
  return std::make_shared<const muonrt::Mesh>(std::move(shape), std::vector<std::string>{},
                                              std::move(ranks));
}

/// Returns a Muon parameter whose tensor dimension 0 is sharded over mesh dimension `dim`. If `dim`
/// is -1, the parameter is replicated.
inline ParamSpec muon(std::string name, std::shared_ptr<const muonrt::Mesh> on,
                      std::vector<int64_t> shape, int dim = 0) {
  ParamSpec out;
  out.name = std::move(name);
  std::vector<muonrt::Cut> cuts;
  if (dim >= 0) cuts.push_back({{dim}, 0});
  out.stack = shape.size() == 3;
  out.layout = Layout::from_cuts(std::move(on), std::move(shape), cuts);
  return out;
}

/// Returns a parameter with these placements.
inline ParamSpec placed(std::string name, std::shared_ptr<const muonrt::Mesh> on,
                        std::vector<int64_t> shape,
                        const std::vector<muonrt::Placement>& placements,
                        muonrt::Role role = muonrt::Role::kMuon) {
  ParamSpec out;
  out.name = std::move(name);
  out.role = role;
  out.stack = role == muonrt::Role::kMuon && shape.size() == 3;
  out.layout = Layout::from_placements(std::move(on), std::move(shape), placements,
                                       muonrt::Reading::kLiteral);
  return out;
}

/// Adds a parameter, and increases the number of ranks if its mesh needs more.
inline void add(Problem& p, ParamSpec spec) {
  for (const int rank : spec.layout.mesh().ranks())
    p.options.world = std::max(p.options.world, rank + 1);
  p.params.push_back(std::move(spec));
}

/// Returns a random matrix or stack with a random layout. It can have partial gradients, or
/// gradients with a separate layout, only if `mixed` is true.
inline ParamSpec random_param(std::string name, bool mixed) {
  muonrt::ParamSettings drawn;
  do {
    drawn.layout = random_layout::draw(2, 3);
  } while (!mixed && !drawn.layout.partial_dims().empty());
  if (mixed && drawn.layout.partial_dims().empty() && pick(0, 1) == 0) {
    take_grad_layout(drawn, random_layout::draw(drawn.layout.shared_mesh(), drawn.layout.shape()));
  }
  ParamSpec out;
  out.name = std::move(name);
  out.layout = drawn.layout;
  out.grad_layout = drawn.grad_layout;
  out.stack = out.layout.dims() == 3;
  out.group = static_cast<int32_t>(pick(0, 1));
  out.update_scale = 0.5;
  return out;
}

inline Problem random_problem(int64_t most_params = 6, bool mixed = false) {
  Problem out;
  const int64_t params = pick(1, most_params);
  for (int64_t p = 0; p < params; ++p)
    add(out, random_param("p" + std::to_string(p * 37 % 101), mixed));
  muonrt::PlanOptions& o = out.options;
  o.chunk_bytes = pick(1, 400);
  o.window = static_cast<int>(pick(1, 8));
  o.max_peers = static_cast<int>(pick(0, 4));
  o.transport_dtype = pick(0, 1) ? muonrt::DType::kBF16 : muonrt::DType::kF32;
  o.commit = pick(0, 1) ? muonrt::CommitMode::kAtomic : muonrt::CommitMode::kEager;
  return out;
}

/// Returns the rank chunks of every rank.
inline std::vector<std::vector<muonrt::RankChunk>> all_rank_chunks(const Plan& plan) {
  std::vector<std::vector<muonrt::RankChunk>> out;
  for (int r = 0; r < plan.problem().options.world; ++r) out.push_back(plan.rank_chunks(r));
  return out;
}

}  // namespace plan_case
