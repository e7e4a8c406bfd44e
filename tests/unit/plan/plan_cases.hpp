#pragma once

// Problems for the planner's tests: a parameter with what each rank holds of it, found the slow
// way.

#include <map>
#include <memory>

#include "plan/plan.hpp"
#include "unit/layout/layout_random.hpp"
#include "unit/layout/layout_vectors.hpp"

namespace plan_case {

using muonrt::Layout;
using muonrt::ParamSpec;
using muonrt::Plan;
using muonrt::Problem;
using naive::List;

/// Row-major numbers of the elements that each rank holds, in local order.
using Held = std::map<int, List>;

struct Case {
  Problem problem;
  std::vector<Held> held;  // of each parameter
};

inline std::shared_ptr<const muonrt::Mesh> mesh(std::vector<int64_t> shape,
                                                std::vector<int32_t> ranks = {}) {
  return std::make_shared<const muonrt::Mesh>(std::move(shape), std::vector<std::string>{},
                                              std::move(ranks));
}

/// A Muon parameter cut along dim 0 by mesh dim `dim` (-1: whole everywhere).
inline ParamSpec muon(std::string name, std::shared_ptr<const muonrt::Mesh> on, List shape,
                      int dim = 0) {
  ParamSpec out;
  out.name = std::move(name);
  std::vector<muonrt::Cut> cuts;
  if (dim >= 0) cuts.push_back({{dim}, 0});
  out.stack = shape.size() == 3;
  out.layout = Layout::from_cuts(std::move(on), std::move(shape), cuts);
  return out;
}

inline void add(Case& c, ParamSpec spec, Held held) {
  for (const int rank : spec.layout.mesh().ranks())
    c.problem.options.world = std::max(c.problem.options.world, rank + 1);
  c.problem.params.push_back(std::move(spec));
  c.held.push_back(std::move(held));
}

/// A worked example as a parameter; 1-D examples get `cols` columns, whole everywhere.
inline void add(Case& c, const vectors::Vector& v, int64_t cols) {
  const Layout layout = muonrt::layout_from_text(v.cuts);
  List shape = layout.shape();
  auto table = v.held;
  if (shape.size() == 1) {
    shape.push_back(cols);
    for (auto& dims : table) dims.push_back(naive::iota(cols));
  }
  ParamSpec spec = muon(v.name, layout.shared_mesh(), shape);
  spec.layout = Layout::from_cuts(layout.shared_mesh(), shape, layout.cuts());
  Held held;
  for (size_t p = 0; p < table.size(); ++p)
    held[layout.mesh().ranks()[p]] = naive::elements(shape, table[p]);
  add(c, std::move(spec), std::move(held));
}

/// A random matrix or stack of any layout without partial sums.
inline void add_random(Case& c, std::string name) {
  for (;;) {
    const random_layout::Case drawn = random_layout::random_case(2, 3);
    if (!drawn.layout.partial_dims().empty()) continue;
    ParamSpec spec;
    spec.name = std::move(name);
    spec.layout = drawn.layout;
    spec.stack = drawn.layout.dims() == 3;
    spec.group = static_cast<int32_t>(random_layout::pick(0, 1));
    spec.update_scale = 0.5;
    add(c, std::move(spec), drawn.held);
    return;
  }
}

inline Case random_case(int64_t most_params = 6) {
  Case c;
  const int64_t params = random_layout::pick(1, most_params);
  for (int64_t p = 0; p < params; ++p) add_random(c, "p" + std::to_string(p * 37 % 101));
  muonrt::PlanOptions& o = c.problem.options;
  o.chunk_bytes = random_layout::pick(1, 400);
  o.window = static_cast<int>(random_layout::pick(1, 8));
  o.transport = random_layout::pick(0, 1) ? muonrt::DType::kBF16 : muonrt::DType::kF32;
  o.commit = random_layout::pick(0, 1) ? muonrt::CommitMode::kAtomic : muonrt::CommitMode::kEager;
  return c;
}

/// What every rank does in every slot.
inline std::vector<std::vector<muonrt::SlotPlan>> all_slots(const Plan& plan) {
  std::vector<std::vector<muonrt::SlotPlan>> out;
  for (int r = 0; r < plan.problem().options.world; ++r) out.push_back(plan.rank_slots(r));
  return out;
}

}  // namespace plan_case
