#include "plan/messages.hpp"

#include <algorithm>
#include <tuple>

#include "plan/slices.hpp"

namespace muonrt {

namespace {

const ParamSpec& spec_of(const Plan& plan, const Segment& s) {
  return plan.problem().params[static_cast<size_t>(s.param)];
}

}  // namespace

const Layout& front_layout(const Plan& plan, const ChunkSpec& chunk) {
  const int32_t param = chunk.kind == ChunkKind::kSlices
                            ? chunk.segments.front().param
                            : plan.matrices()[static_cast<size_t>(chunk.matrices.front())].param;
  return plan.problem().params[static_cast<size_t>(param)].layout;
}

std::vector<int32_t> returned_replicas(const Plan& plan, const ChunkSpec& chunk, const Matrix& m) {
  if (plan.each_replica()) return {m.replica};
  const int32_t replicas = plan.holders().group(m.param, m.index).replicas;
  std::vector<int32_t> out;
  for (int32_t r = 0; r < replicas; r += std::max(chunk.relay, 1))
    out.push_back(chunk.relay > 0 ? head_replica(r, m.replica, chunk.relay, replicas) : r);
  return out;
}

RankMessages messages_of(const Plan& plan, BlockTable& blocks, const ChunkSpec& chunk,
                         int32_t rank) {
  RankMessages out;
  // If the return has two levels: the mesh dims along which ranks hold equal shards.
  std::vector<int> equal_dims;
  if (chunk.relay > 0) equal_dims = front_layout(plan, chunk).full_replica_dims();
  for (const int32_t id : chunk.matrices) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    const auto add_gather = [&](const Holder& from) {
      const MessageEntry entry{Exchange::kGather, from.rank, m.owner, m.owner, id, from};
      if (from.rank == rank) out.gather_sends.push_back(entry);
      if (m.owner == rank) out.gather_receives.push_back(entry);
    };
    const auto add_return = [&](const Holder& to) {
      const MessageEntry entry{Exchange::kReturn, m.owner, to.rank, m.owner, id, to};
      if (m.owner == rank) out.return_sends.push_back(entry);
      if (to.rank == rank) out.return_receives.push_back(entry);
    };
    const HolderGroup& gathered = plan.holders().grad_group(m.param, m.index);
    const HolderGroup& group = plan.holders().group(m.param, m.index);
    if (m.owner == rank) {
      out.owned.push_back(id);
      for_each_holder(gathered, blocks.grad_runs(m.param, m.index), m.grad_replica,
                      [&](const Holder& from, int64_t) { add_gather(from); });
      for (const int32_t replica : returned_replicas(plan, chunk, m))
        for_each_holder(group, blocks.runs(m.param, m.index), replica,
                        [&](const Holder& to, int64_t) {
                          if (!plan.every_rank() || to.rank == m.owner) add_return(to);
                        });
      continue;
    }
    if (const Holder* own = gathered.find(rank);
        own && own->replica == m.grad_replica &&
        numel_of(blocks.grad_runs(m.param, m.index), own->shard) > 0)
      add_gather(*own);
    const Holder* own = group.find(rank);
    if (!own || plan.every_rank() || (plan.each_replica() && own->replica != m.replica) ||
        numel_of(blocks.runs(m.param, m.index), own->shard) == 0)
      continue;
    const int32_t head = chunk.relay > 0
                             ? head_replica(own->replica, m.replica, chunk.relay, group.replicas)
                             : own->replica;
    if (head == own->replica) {
      add_return(*own);
    } else {
      const int from = front_layout(plan, chunk).equal_holder(rank, head, equal_dims);
      out.relay_receives.push_back({Exchange::kRelay, from, rank, m.owner, id, *own});
    }
  }
  for (auto* list : {&out.gather_sends, &out.gather_receives, &out.return_sends,
                     &out.return_receives, &out.relay_receives}) {
    std::sort(list->begin(), list->end(), [](const MessageEntry& a, const MessageEntry& b) {
      return std::tie(a.from, a.to, a.owner, a.matrix) < std::tie(b.from, b.to, b.owner, b.matrix);
    });
  }
  return out;
}

SliceGroup::SliceGroup(const Plan& plan, const ChunkSpec& chunk, int32_t rank) : chunk_(chunk) {
  const Layout& layout = front_layout(plan, chunk);
  for (const int one : layout.replica_group(rank)) {
    members_.push_back(
        {one, static_cast<int32_t>(layout.full_replica_index(one)), std::ssize(members_)});
    replicas_ = std::max(replicas_, members_.back().replica + 1);
  }
  if (members_.empty()) return;
  gathers_ = !spec_of(plan, chunk.segments.front()).grad_layout;
  for (const Segment& s : chunk.segments)
    local_.push_back(spec_of(plan, s).layout.local_numel(rank));
  for (Member& member : members_) {
    for (size_t s = 0; s < local_.size(); ++s) {
      const auto [begin, end] = range(s, member);
      member.numel += end - begin;
    }
  }
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.rank < b.rank; });
}

const SliceGroup::Member& SliceGroup::member(int32_t rank) const {
  return *std::lower_bound(members_.begin(), members_.end(), rank,
                           [](const Member& m, int32_t r) { return m.rank < r; });
}

std::pair<int64_t, int64_t> SliceGroup::range(size_t s, const Member& owner) const {
  return slice_of(local_[s], chunk_.segments[s], owner.number, std::ssize(members_));
}

bool SliceGroup::returns(const Member& owner, const Member& to) const {
  if (chunk_.relay == 0) return owner.rank != to.rank;
  return to.replica == head_replica(to.replica, owner.replica, chunk_.relay, replicas_);
}

SplitGather::SplitGather(const Plan& plan, const ChunkSpec& chunk)
    : plan_(plan), chunk_(chunk), owners_(front_layout(plan, chunk).mesh().ranks()) {
  std::sort(owners_.begin(), owners_.end());
  for (const Segment& s : chunk.segments) sources_.emplace_back(spec_of(plan, s));
}

std::vector<int32_t> SplitGather::holders_of(int32_t owner) const {
  std::vector<int32_t> out;
  for (const SliceSources& source : sources_) {
    const std::vector<int>& more = source.holders(source.replica_for(owner));
    out.insert(out.end(), more.begin(), more.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<SplitGather::Share> SplitGather::shares_of(int32_t owner, int32_t holder) {
  std::vector<Share> out;
  for (size_t s = 0; s < sources_.size(); ++s) {
    SliceSources& source = sources_[s];
    const std::vector<int>& holders = source.holders(source.replica_for(owner));
    if (!std::binary_search(holders.begin(), holders.end(), holder)) continue;
    const Segment& segment = chunk_.segments[s];
    const auto [begin, end] = slice_at(spec_of(plan_, segment).layout, segment, owner);
    std::vector<SharedBlock> blocks = source.shared(owner, begin, end, holder);
    if (!blocks.empty()) out.push_back({s, std::move(blocks)});
  }
  return out;
}

}  // namespace muonrt
