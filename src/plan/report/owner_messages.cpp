#include "plan/report/owner_messages.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace muonrt {

const HolderGroup& OwnerMessages::group_of(const Matrix& m, Exchange exchange) const {
  return exchange == Exchange::kGather ? plan_.holders().grad_group(m.param, m.index)
                                       : plan_.holders().group(m.param, m.index);
}

const ShardRuns& OwnerMessages::runs_of(const Matrix& m, Exchange exchange) {
  return exchange == Exchange::kGather ? blocks_.grad_runs(m.param, m.index)
                                       : blocks_.runs(m.param, m.index);
}

std::vector<int32_t> OwnerMessages::replicas_of(const Matrix& m, Exchange exchange) const {
  return exchange == Exchange::kGather ? std::vector{m.grad_replica}
                                       : returned_replicas(plan_, chunk_, m);
}

std::vector<RankRange> OwnerMessages::of(std::span<const int32_t> ids, Exchange exchange) {
  const HolderGroup& group = group_of(matrix(ids.front()), exchange);
  const bool alike = std::ranges::all_of(
      ids, [&](int32_t id) { return &group_of(matrix(id), exchange) == &group; });
  std::vector<RankRange> out =
      alike ? of_one_group(ids, exchange, group) : of_groups(ids, exchange);
  if (plan_.every_rank() && exchange == Exchange::kReturn) {
    const int32_t owner = matrix(ids.front()).owner;
    std::erase_if(out, [&](const RankRange& m) { return m.first != owner; });
  }
  return out;
}

std::vector<RankRange> OwnerMessages::of_one_group(std::span<const int32_t> ids, Exchange exchange,
                                                   const HolderGroup& group) {
  std::vector<RankRange> out;
  const bool ranges = group.consecutive && !plan_.every_rank();
  const ShardRuns runs = sum_of_runs(ids, exchange);
  for (const int32_t replica : replicas_of(matrix(ids.front()), exchange)) {
    for (int32_t p = 0; p < group.partial_count; ++p) {
      int64_t shard = 0;
      for (const ShardRun& run : runs) {
        if (run.numel == 0) shard = run.end;
        for (const int64_t step = ranges ? run.end - shard : 1; shard < run.end; shard += step)
          out.push_back({group.rank_of(replica, p, shard), static_cast<int32_t>(step), run.numel,
                         static_cast<uint64_t>(shard)});
      }
    }
  }
  return out;
}

ShardRuns OwnerMessages::sum_of_runs(std::span<const int32_t> ids, Exchange exchange) {
  if (ids.size() == 1) return runs_of(matrix(ids.front()), exchange);
  std::map<int64_t, int64_t> change;  // for each shard, the change of the sum at this shard
  for (const int32_t id : ids) {
    int64_t begin = 0;
    for (const ShardRun& run : runs_of(matrix(id), exchange)) {
      change[begin] += run.numel;
      change[run.end] -= run.numel;
      begin = run.end;
    }
  }
  ShardRuns out;
  int64_t begin = 0, numel = 0;
  for (const auto& [shard, more] : change) {
    add_shards(out, shard - begin, numel);
    begin = shard;
    numel += more;
  }
  return out;
}

std::vector<RankRange> OwnerMessages::of_groups(std::span<const int32_t> ids, Exchange exchange) {
  std::vector<RankRange> out;
  by_rank_.resize(static_cast<size_t>(plan_.problem().options.world));
  for (const int32_t id : ids) {
    const Matrix& m = matrix(id);
    for (const int32_t replica : replicas_of(m, exchange))
      for_each_holder(group_of(m, exchange), runs_of(m, exchange), replica,
                      [&](const Holder& holder, int64_t numel) {
                        Sum& sum = by_rank_[static_cast<size_t>(holder.rank)];
                        if (sum.numel == 0) out.push_back({holder.rank, 1, 0, 0});
                        sum.numel += numel;
                        sum.content.value(int64_t{id});
                        sum.content.value(int64_t{holder.shard});
                      });
  }
  for (RankRange& one : out) {
    const Sum sum = std::exchange(by_rank_[static_cast<size_t>(one.first)], {});
    one.numel = sum.numel;
    one.content = sum.content.digest();
  }
  return out;
}

}  // namespace muonrt
