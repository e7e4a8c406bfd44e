#include "plan/state_memory.hpp"

#include <set>
#include <unordered_map>
#include <utility>

namespace muonrt {

namespace {

/// Bytes of an element of all parameters with equal layouts. There are few layouts and many ranks.
struct LayoutBytes {
  const Layout* layout = nullptr;
  int64_t params = 0, grads = 0, masters = 0, own_masters = 0, moments = 0;
};

}  // namespace

LocalBytes local_bytes(const Plan& plan) {
  const std::vector<ParamSpec>& params = plan.problem().params;
  std::unordered_map<uint64_t, LayoutBytes> by_hash;
  const auto at = [&](const Layout& layout) -> LayoutBytes& {
    LayoutBytes& out = by_hash[layout.hash()];
    out.layout = &layout;
    return out;
  };
  for (const ParamSpec& spec : params) {
    LayoutBytes& of = at(spec.layout);
    of.params += size_of(spec.dtype);
    of.masters += spec.weight_bytes > 0 ? spec.weight_bytes : (spec.master ? 4 : 0);
    of.own_masters += spec.weight_bytes;
    of.moments += local_state_bytes(spec) - spec.weight_bytes;
    at(grad_layout(spec)).grads += size_of(spec.grad_dtype);
  }
  const auto world = static_cast<size_t>(plan.problem().options.world);
  const std::vector<int64_t> zeros(world, 0);
  LocalBytes out{zeros, zeros, zeros, zeros, zeros};
  for (const auto& [hash, of] : by_hash) {
    for (size_t r = 0; r < world; ++r) {
      const int64_t numel = of.layout->local_numel(static_cast<int>(r));
      out.params[r] += numel * of.params;
      out.grads[r] += numel * of.grads;
      out.masters[r] += numel * of.masters;
      out.own_masters[r] += numel * of.own_masters;
      out.moments[r] += numel * of.moments;
    }
  }
  std::set<std::pair<int32_t, int32_t>> owned;  // parameter, owner
  for (const Matrix& m : plan.matrices()) {
    const int64_t bytes = params[static_cast<size_t>(m.param)].owner_bytes;
    if (bytes > 0 && owned.emplace(m.param, m.owner).second)
      out.moments[static_cast<size_t>(m.owner)] += bytes;
  }
  return out;
}

}  // namespace muonrt
