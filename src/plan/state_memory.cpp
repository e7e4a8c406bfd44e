#include "plan/state_memory.hpp"

#include <set>
#include <utility>

namespace muonrt {

std::vector<int64_t> local_state_bytes(const Plan& plan) {
  const std::vector<ParamSpec>& params = plan.problem().params;
  // Groups the parameters by layout, because there are few layouts and many ranks.
  std::vector<int64_t> state_of(static_cast<size_t>(plan.holders().layouts()), 0);
  std::vector<const Layout*> layout(state_of.size(), nullptr);
  for (size_t p = 0; p < params.size(); ++p) {
    const auto l = static_cast<size_t>(plan.holders().layout_of(static_cast<int32_t>(p)));
    layout[l] = &params[p].layout;
    state_of[l] += local_state_bytes(params[p]);
  }
  std::vector<int64_t> out(static_cast<size_t>(plan.problem().options.world), 0);
  for (size_t r = 0; r < out.size(); ++r) {
    for (size_t l = 0; l < layout.size(); ++l) {
      if (layout[l] != nullptr) out[r] += state_of[l] * layout[l]->local_numel(static_cast<int>(r));
    }
  }
  std::set<std::pair<int32_t, int32_t>> owned;  // parameter, owner
  for (const Matrix& m : plan.matrices()) {
    const int64_t bytes = params[static_cast<size_t>(m.param)].owner_bytes;
    if (bytes > 0 && owned.emplace(m.param, m.owner).second) {
      out[static_cast<size_t>(m.owner)] += bytes;
    }
  }
  return out;
}

}  // namespace muonrt
