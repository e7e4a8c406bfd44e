#include "plan/slices.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "plan/exchange.hpp"

namespace muonrt {

namespace {

std::pair<int64_t, int64_t> chunk(int64_t numel, int64_t index, int64_t count) {
  const int64_t width = ceil_div(numel, count);
  return {std::min(numel, index * width), std::min(numel, (index + 1) * width)};
}

/// One rank's part of a chunk of slices. All segments of the chunk are distributed over the same
/// mesh dims, so the rank has the same peers for each segment.
class SliceChunk {
 public:
  SliceChunk(const Plan& plan, const ChunkSpec& chunk, int32_t rank, RankChunk& out)
      : plan_(plan),
        chunk_(chunk),
        rank_(rank),
        out_(out),
        group_(plan, chunk, rank),
        sends_(size_of(out.gather_dtype)),
        receives_(size_of(out.gather_dtype)),
        back_(size_of(out.return_dtype)) {
    if (!group_.members().empty()) add_owner_state();
    if (spec_of(chunk.segments.front()).grad_layout) add_split_gather();
    group_.for_each(rank, [&](Exchange exchange, const Member& from, const Member& to) {
      if (exchange == Exchange::kGather) return add_gather(from, to);
      add_return(from, to);
    });
    if (chunk.relay > 0 && !group_.members().empty()) add_relay();
    out.gather_send_bytes = sends_.total();
    out.gather_receive_bytes = receives_.total();
    out.return_receive_bytes = back_.total();
  }

 private:
  using Member = SliceGroup::Member;

  const ParamSpec& spec_of(const Segment& s) const {
    return plan_.problem().params[static_cast<size_t>(s.param)];
  }

  /// Adds a message that contains the slices of `owner`.
  Region add_message(const Member& owner, int32_t peer, MessageCursor& cursor,
                     std::vector<ShardBlock>& blocks) const {
    cursor.begin_message();
    for (size_t s = 0; s < chunk_.segments.size(); ++s) {
      const auto [begin, end] = group_.range(s, owner);
      if (begin == end) continue;
      blocks.push_back({chunk_.segments[s].param, -1, 1, end - begin, begin, end - begin,
                        cursor.take(end - begin), 0, begin, 1.0f});
    }
    return cursor.region(peer);
  }

  void add_owner_state() {
    int64_t sum = 0;
    MessageCursor back(size_of(out_.return_dtype));
    back.begin_message();
    for (size_t s = 0; s < chunk_.segments.size(); ++s) {
      const int32_t param = chunk_.segments[s].param;
      const auto [begin, end] = group_.range(s, group_.member(rank_));
      owner_state_of_.push_back(out_.owner_state.size());
      if (begin == end) continue;
      out_.owner_state.push_back({param, begin, end - begin, sum});
      const auto place = static_cast<int32_t>(out_.owner_state_blocks.size());
      out_.owner_state_blocks.push_back(
          {place, -1, 1, end - begin, 0, end - begin, back.take(end - begin), 0, begin, 1.0f});
      sum = round_up(sum + end - begin, kMessageAlignment / 4);
    }
    out_.sum_bytes = sum * 4;
    // A rank without peers also packs its slices, because packing checks the sums.
    all_ = back.region(rank_);
    out_.return_send_bytes = back.total();
  }

  std::vector<ShardBlock>& partial_grads_of(const Layout& gradient, int32_t holder) {
    const auto partial_grad = static_cast<size_t>(gradient.partial_index(holder));
    if (out_.partial_grad_blocks.size() <= partial_grad)
      out_.partial_grad_blocks.resize(partial_grad + 1);
    return out_.partial_grad_blocks[partial_grad];
  }

  void add_gather(const Member& from, const Member& owner) {
    if (from.rank == rank_)
      out_.gather_sends.push_back(add_message(owner, owner.rank, sends_, out_.gather_blocks));
    if (owner.rank != rank_) return;
    receives_.begin_message();
    std::vector<ShardBlock>& list = partial_grads_of(front_layout(plan_, chunk_), from.rank);
    for (const OwnerState& k : out_.owner_state)
      list.push_back({k.param, -1, 1, k.numel, k.sum_offset, k.numel, receives_.take(k.numel), 0,
                      k.first, 1.0f});
    out_.gather_receives.push_back(receives_.region(from.rank));
  }

  /// Adds the gather of gradients with a separate layout. This rank sends each owner those elements
  /// of the owner's slices that this rank's gradient contains.
  void add_split_gather() {
    SplitGather gather(plan_, chunk_);
    gather.for_each(rank_, [&](int32_t from, int32_t to, const auto& shares) {
      if (from == rank_) add_split_send(to, shares);
      if (to == rank_) add_split_receive(from, shares);
    });
  }

  void add_split_send(int32_t owner, const std::vector<SplitGather::Share>& shares) {
    sends_.begin_message();
    for (const auto& [s, blocks] : shares) {
      for (const SharedBlock& b : blocks) {
        out_.gather_blocks.push_back({chunk_.segments[s].param, -1, b.rows, b.cols, b.grad_offset,
                                      b.grad_ld, sends_.take(b.rows * b.cols), 0, 0, 1.0f});
      }
    }
    out_.gather_sends.push_back(sends_.region(owner));
  }

  void add_split_receive(int32_t holder, const std::vector<SplitGather::Share>& shares) {
    receives_.begin_message();
    for (const auto& [s, blocks] : shares) {
      const OwnerState& to = out_.owner_state[owner_state_of_[s]];
      std::vector<ShardBlock>& list =
          partial_grads_of(*spec_of(chunk_.segments[s]).grad_layout, holder);
      for (const SharedBlock& b : blocks) {
        list.push_back({to.param, -1, b.rows, b.cols, to.sum_offset + b.param_offset - to.first,
                        b.param_ld, receives_.take(b.rows * b.cols), 0, b.param_offset, 1.0f});
      }
    }
    out_.gather_receives.push_back(receives_.region(holder));
  }

  void add_return(const Member& owner, const Member& to) {
    if (owner.rank == rank_) out_.return_sends.push_back({to.rank, all_.offset, all_.bytes});
    if (to.rank == rank_) out_.return_receives.push_back(add_back(owner, owner.rank));
  }

  /// Adds the message with the new values of `owner`'s slices. A rank does not unpack its own
  /// slices.
  Region add_back(const Member& owner, int32_t peer) {
    std::vector<ShardBlock> own;
    return add_message(owner, peer, back_, owner.rank == rank_ ? own : out_.return_blocks);
  }

  void add_relay() {
    const Layout& layout = front_layout(plan_, chunk_);
    add_relay_sends(layout, rank_, chunk_.relay, out_);
    for (const int32_t mate : forwards_to(layout, rank_, chunk_.relay)) {
      for (const Member& owner : group_.members()) {
        if (owner.numel > 0 && group_.returns(owner, group_.member(mate)))
          add_relayed(add_back(owner, mate), out_.relay_receives);
      }
    }
  }

  const Plan& plan_;
  const ChunkSpec& chunk_;
  int32_t rank_;
  RankChunk& out_;
  SliceGroup group_;
  MessageCursor sends_, receives_, back_;
  std::vector<size_t> owner_state_of_;  // for each segment, its index into RankChunk::owner_state
  Region all_{};  // region of the return send buffer that contains all slices of this rank
};

}  // namespace

std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members) {
  const auto [begin, end] = chunk(numel, segment.index, segment.count);
  const auto [first, last] = chunk(end - begin, member, members);
  return {begin + first, begin + last};
}

std::pair<int64_t, int64_t> slice_at(const Layout& layout, const Segment& segment, int owner) {
  return slice_of(layout.local_numel(owner), segment, layout.replica_index(owner),
                  layout.replicas());
}

void add_slices(const Plan& plan, const ChunkSpec& chunk, int32_t rank, RankChunk& out) {
  SliceChunk(plan, chunk, rank, out);
}

}  // namespace muonrt
