#include "plan/state_memory.hpp"

#include <map>
#include <set>
#include <utility>

#include "layout/holders.hpp"

namespace muonrt {

namespace {

/// Bytes by kind. In LocalSums, an entry is the difference from the previous shard.
struct KindBytes {
  int64_t params = 0, grads = 0, masters = 0, own_masters = 0, moments = 0;
  void add(const KindBytes& other, int64_t times) {
    params += times * other.params;
    grads += times * other.grads;
    masters += times * other.masters;
    own_masters += times * other.own_masters;
    moments += times * other.moments;
  }
};

/// The bytes of all parameters that are sharded over the same mesh dims.
struct LocalSums {
  const Layout* layout = nullptr;  // layout of any of these parameters
  std::vector<KindBytes> by_shard;
};

}  // namespace

LocalBytes local_bytes(const Plan& plan) {
  const std::vector<ParamSpec>& params = plan.problem().params;
  std::map<std::pair<const Mesh*, std::vector<int>>, LocalSums> sums;
  const auto add = [&](const Layout& layout, const KindBytes& element) {
    LocalSums& to = sums[{&layout.mesh(), layout.shard_dims()}];
    to.layout = &layout;
    to.by_shard.resize(static_cast<size_t>(layout.shard_count()) + 1);
    int64_t begin = 0;
    for (const ShardRun& run : shard_runs(layout)) {
      to.by_shard[static_cast<size_t>(begin)].add(element, run.numel);
      to.by_shard[static_cast<size_t>(run.end)].add(element, -run.numel);
      begin = run.end;
    }
  };
  for (const ParamSpec& spec : params) {
    KindBytes element;
    element.params = size_of(spec.dtype);
    element.masters = spec.weight_bytes > 0 ? spec.weight_bytes : (spec.master ? 4 : 0);
    element.own_masters = spec.weight_bytes;
    element.moments = local_state_bytes(spec) - spec.weight_bytes;
    add(spec.layout, element);
    KindBytes grad;
    grad.grads = size_of(spec.grad_dtype);
    add(grad_layout(spec), grad);
  }
  const auto world = static_cast<size_t>(plan.problem().options.world);
  const std::vector<int64_t> zeros(world, 0);
  LocalBytes out{zeros, zeros, zeros, zeros, zeros};
  for (auto& [key, of] : sums) {
    for (size_t s = 1; s < of.by_shard.size(); ++s) of.by_shard[s].add(of.by_shard[s - 1], 1);
    const Mesh& mesh = of.layout->mesh();
    for (int64_t position = 0; position < mesh.size(); ++position) {
      const auto r = static_cast<size_t>(mesh.ranks()[static_cast<size_t>(position)]);
      const KindBytes& bytes =
          of.by_shard[static_cast<size_t>(mesh.index_over(of.layout->shard_dims(), position))];
      out.params[r] += bytes.params;
      out.grads[r] += bytes.grads;
      out.masters[r] += bytes.masters;
      out.own_masters[r] += bytes.own_masters;
      out.moments[r] += bytes.moments;
    }
  }
  std::set<std::pair<int32_t, int32_t>> owned;  // pairs of a parameter and an owner
  for (const Matrix& m : plan.matrices()) {
    const int64_t bytes = params[static_cast<size_t>(m.param)].owner_bytes;
    if (bytes > 0 && owned.emplace(m.param, m.owner).second)
      out.moments[static_cast<size_t>(m.owner)] += bytes;
  }
  return out;
}

}  // namespace muonrt
