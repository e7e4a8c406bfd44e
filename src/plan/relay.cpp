#include "plan/relay.hpp"

#include "base/checked.hpp"

namespace muonrt {

int32_t relay_block(int64_t shares, int64_t replicas, bool owner_holds, int64_t max_peers) {
  int64_t fewest = direct_peers(shares, replicas, owner_holds), best = 0;
  if (fewest <= max_peers) return 0;
  for (int64_t block = replicas; block > 1; --block) {
    const int64_t heads = ceil_div(replicas, block);
    const int64_t peers = std::max(direct_peers(shares, heads, owner_holds), block - 1);
    if (peers < fewest) {
      fewest = peers;
      best = block;
    }
    if (block == replicas && peers <= max_peers) break;
  }
  return static_cast<int32_t>(best);
}

std::vector<int32_t> forwards_to(const Layout& layout, int32_t rank, int32_t block) {
  std::vector<int32_t> out;
  if (!layout.holds_mesh_rank(rank)) return out;
  const std::vector<int> full = layout.full_replica_dims();
  const int64_t first = layout.full_replica_index(rank) / block * block;
  const int64_t end = std::min(layout.mesh().count_over(full), first + block);
  for (int64_t r = first; r < end; ++r) {
    const int equal = layout.equal_holder(rank, r, full);
    if (equal != rank) out.push_back(equal);
  }
  std::sort(out.begin(), out.end());
  return out;
}

RelayChooser::RelayChooser(const std::vector<ParamSpec>& params, const PlanOptions& options,
                           const HolderTable& holders)
    : params_(params),
      max_peers_(max_peers(options)),
      never_(options.replica_mode == ReplicaMode::kEach ||
             options.replica_mode == ReplicaMode::kEveryRank || options.world <= max_peers_),
      holders_(holders),
      blocks_(params, holders),
      block_of_kind_(static_cast<size_t>(holders.kinds()), -1),
      over_(static_cast<size_t>(holders.layouts())) {}

int32_t RelayChooser::block(int32_t param, int64_t index) {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  if (never_ || spec.by_callback) return 0;
  if (index < 0) {
    const HolderGroup& group = holders_.whole_group(param);
    return block_of(group.partial_count, group.replicas, true);
  }
  int32_t& known = block_of_kind_[static_cast<size_t>(holders_.kind(param, index))];
  if (known >= 0) return known;
  const HolderGroup& group = holders_.group(param, index);
  int64_t shares = 0, begin = 0;
  for (const ShardRun& run : blocks_.runs(param, index)) {
    if (run.numel > 0) shares += run.end - begin;
    begin = run.end;
  }
  return known = block_of(shares * group.partial_count, group.replicas, shares == group.shards);
}

int32_t RelayChooser::block_of(int64_t shares, int64_t replicas, bool owner_holds) {
  const auto [at, is_new] = known_.try_emplace({shares, replicas, owner_holds}, 0);
  if (is_new) at->second = relay_block(shares, replicas, owner_holds, max_peers_);
  return at->second;
}

const std::vector<int64_t>& RelayChooser::over(int32_t param) {
  std::vector<int64_t>& out = over_[static_cast<size_t>(holders_.layout_of(param))];
  if (!out.empty()) return out;
  const Layout& layout = params_[static_cast<size_t>(param)].layout;
  const Mesh& mesh = layout.mesh();
  out.push_back(static_cast<int64_t>(mesh.hash()));
  for (const int k : layout.full_replica_dims()) {
    if (mesh.shape()[static_cast<size_t>(k)] > 1) out.push_back(mesh.stride(k));
  }
  return out;
}

}  // namespace muonrt
