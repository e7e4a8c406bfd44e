#include "plan/slices.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "plan/exchange.hpp"
#include "plan/relay.hpp"
#include "plan/slice_sources.hpp"

namespace muonrt {

namespace {

std::pair<int64_t, int64_t> chunk(int64_t numel, int64_t index, int64_t count) {
  const int64_t width = ceil_div(numel, count);
  return {std::min(numel, index * width), std::min(numel, (index + 1) * width)};
}

/// One rank's part in a slot of slices. All its segments lie over the same mesh dims, so the ranks
/// that it meets are the same for each.
class SliceSlot {
 public:
  SliceSlot(const Plan& plan, const Slot& slot, int32_t rank, SlotPlan& out)
      : plan_(plan), slot_(slot), rank_(rank), out_(out) {
    const Layout& layout = layout_of(slot.segments.front());
    split_ = spec_of(slot.segments.front()).grad_layout.has_value();
    if (split_) add_split_gather();
    members_ = layout.replica_group(rank);
    if (members_.empty()) return;
    me_ = layout.replica_index(rank);
    replica_ = layout.full_replica_index(rank);
    for (const int r : members_)
      replica_of_.push_back(static_cast<int32_t>(layout.full_replica_index(r)));
    replicas_ = *std::max_element(replica_of_.begin(), replica_of_.end()) + 1;
    for (size_t m = 0; m < members_.size(); ++m) by_rank_.push_back(static_cast<int64_t>(m));
    std::sort(by_rank_.begin(), by_rank_.end(), [&](int64_t a, int64_t b) {
      return members_[static_cast<size_t>(a)] < members_[static_cast<size_t>(b)];
    });
    if (!split_) add_gather(layout);
    add_kept(layout);
    add_return(layout);
  }

 private:
  const ParamSpec& spec_of(const Segment& s) const {
    return plan_.problem().params[static_cast<size_t>(s.param)];
  }
  const Layout& layout_of(const Segment& s) const { return spec_of(s).layout; }
  int32_t rank_of(int64_t member) const { return members_[static_cast<size_t>(member)]; }
  std::pair<int64_t, int64_t> range(const Segment& s, int64_t member) const {
    return slice_of(layout_of(s).local_numel(rank_), s, member,
                    static_cast<int64_t>(members_.size()));
  }

  /// A message with the slices of `member`; nothing where they are empty.
  void add_message(int64_t member, int32_t peer, MessageCursor& cursor, std::vector<Piece>& pieces,
                   std::vector<Region>& regions) const {
    cursor.begin_message();
    bool any = false;
    for (const Segment& s : slot_.segments) {
      const auto [begin, end] = range(s, member);
      if (begin == end) continue;
      any = true;
      pieces.push_back({s.param, -1, 1, end - begin, begin, end - begin, cursor.take(end - begin),
                        0, begin, 1.0f});
    }
    if (any) regions.push_back(cursor.region(peer));
  }

  void add_gather(const Layout& layout) {
    MessageCursor sends(size_of(out_.gather_dtype));
    for (const int64_t m : by_rank_) {
      if (layout.full_replica_index(rank_of(m)) == replica_)
        add_message(m, rank_of(m), sends, out_.gather_pieces, out_.gather_sends);
    }
    out_.gather_send_bytes = sends.total();
  }

  void add_kept(const Layout& layout) {
    int64_t sum = 0;
    MessageCursor back(size_of(out_.return_dtype));
    back.begin_message();
    for (const Segment& s : slot_.segments) {
      const auto [begin, end] = range(s, me_);
      if (begin == end) continue;
      out_.kept.push_back({s.param, begin, end - begin, sum});
      out_.kept_pieces.push_back(
          {s.param, -1, 1, end - begin, 0, end - begin, back.take(end - begin), 0, begin, 1.0f});
      sum = round_up(sum + end - begin, kMessageAlignment / 4);
    }
    if (out_.kept.empty()) return;
    out_.sum_bytes = sum * 4;
    if (split_) {
      add_split_addends();
    } else {
      add_addends(layout);
    }
    // A rank that holds them alone packs them all the same: that is where its sums are looked at.
    const Region all = back.region(rank_);
    for (const int64_t m : by_rank_) {
      if (returns(me_, m)) out_.return_sends.push_back({rank_of(m), all.offset, all.bytes});
    }
    out_.return_send_bytes = back.total();
  }

  void add_addends(const Layout& layout) {
    out_.addends.resize(static_cast<size_t>(layout.addends()));
    MessageCursor receives(size_of(out_.gather_dtype));
    for (const int64_t m : by_rank_) {
      if (layout.full_replica_index(rank_of(m)) != replica_) continue;
      receives.begin_message();
      auto& list = out_.addends[static_cast<size_t>(layout.addend_index(rank_of(m)))];
      for (const Kept& k : out_.kept)
        list.push_back({k.param, -1, 1, k.numel, k.sum_offset, k.numel, receives.take(k.numel), 0,
                        k.first, 1.0f});
      out_.gather_receives.push_back(receives.region(rank_of(m)));
    }
    out_.gather_receive_bytes = receives.total();
  }

  /// Gradients of layouts of their own: to every owner what lies here of its slices.
  void add_split_gather() {
    std::vector<SliceSources> sources;
    for (const Segment& s : slot_.segments) sources.emplace_back(spec_of(s));
    const Layout& layout = layout_of(slot_.segments.front());
    std::vector<int32_t> owners = layout.mesh().ranks();
    std::sort(owners.begin(), owners.end());
    MessageCursor cursor(size_of(out_.gather_dtype));
    for (const int32_t owner : owners) {
      cursor.begin_message();
      const size_t before = out_.gather_pieces.size();
      for (size_t i = 0; i < sources.size(); ++i) {
        const Segment& s = slot_.segments[i];
        const Layout& gradient = *spec_of(s).grad_layout;
        if (gradient.full_replica_index(rank_) != sources[i].replica_for(owner)) continue;
        const auto [begin, end] = slice_at(layout_of(s), s, owner);
        for (const SharedBlock& b : sources[i].shared(owner, begin, end, rank_)) {
          out_.gather_pieces.push_back({s.param, -1, b.rows, b.cols, b.grad_offset, b.grad_ld,
                                        cursor.take(b.rows * b.cols), 0, 0, 1.0f});
        }
      }
      if (out_.gather_pieces.size() > before) out_.gather_sends.push_back(cursor.region(owner));
    }
    out_.gather_send_bytes = cursor.total();
  }

  /// Receives them, in the order in which add_split_gather packs them.
  void add_split_addends() {
    std::vector<SliceSources> sources;
    std::vector<int> peers;
    for (const Segment& s : slot_.segments) {
      SliceSources& source = sources.emplace_back(spec_of(s));
      const std::vector<int>& more = source.holders(source.replica_for(rank_));
      peers.insert(peers.end(), more.begin(), more.end());
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    MessageCursor cursor(size_of(out_.gather_dtype));
    for (const int peer : peers) {
      cursor.begin_message();
      bool any = false;
      auto kept = out_.kept.begin();
      for (size_t i = 0; i < sources.size(); ++i) {
        const Segment& s = slot_.segments[i];
        const auto [begin, end] = range(s, me_);
        if (begin == end) continue;
        const Kept& to = *kept++;
        any = add_shared(to, begin, sources[i].shared(rank_, begin, end, peer), sources[i], peer,
                         cursor) ||
              any;
      }
      if (any) out_.gather_receives.push_back(cursor.region(peer));
    }
    out_.gather_receive_bytes = cursor.total();
  }

  bool add_shared(const Kept& to, int64_t begin, const std::vector<SharedBlock>& blocks,
                  const SliceSources& source, int peer, MessageCursor& cursor) {
    const std::vector<int>& holders = source.holders(source.replica_for(rank_));
    if (!std::binary_search(holders.begin(), holders.end(), peer)) return false;
    const Layout& gradient = *plan_.problem().params[static_cast<size_t>(to.param)].grad_layout;
    const auto addend = static_cast<size_t>(gradient.addend_index(peer));
    if (out_.addends.size() <= addend) out_.addends.resize(addend + 1);
    for (const SharedBlock& b : blocks) {
      out_.addends[addend].push_back({to.param, -1, b.rows, b.cols,
                                      to.sum_offset + b.param_offset - begin, b.param_ld,
                                      cursor.take(b.rows * b.cols), 0, b.param_offset, 1.0f});
    }
    return !blocks.empty();
  }

  int32_t replica(int64_t member) const { return replica_of_[static_cast<size_t>(member)]; }

  /// Whether the owner of a slice sends it to `to` itself. In two levels to itself, too, so that
  /// what it forwards lies together.
  bool returns(int64_t owner, int64_t to) const {
    if (slot_.relay == 0) return owner != to;
    return replica(to) == head_replica(replica(to), replica(owner), slot_.relay, replicas_);
  }

  void add_return(const Layout& layout) {
    MessageCursor cursor(size_of(out_.return_dtype));
    for (const int64_t m : by_rank_) {
      if (returns(m, me_)) add_back(m, cursor, out_.return_receives);
    }
    if (slot_.relay > 0) add_relay(layout, cursor);
    out_.return_receive_bytes = cursor.total();
  }

  /// New values of `owner`'s slices; those of its own a rank has already.
  void add_back(int64_t owner, MessageCursor& cursor, std::vector<Region>& regions) {
    std::vector<Piece> own;
    add_message(owner, rank_of(owner), cursor, owner == me_ ? own : out_.return_pieces, regions);
  }

  void add_relay(const Layout& layout, MessageCursor& cursor) {
    const std::vector<int> equal = layout.equal_holders(rank_);
    const std::vector<Region>& direct = out_.return_receives;
    const int64_t received = direct.empty() ? 0 : direct.back().offset + direct.back().bytes;
    for (const int32_t mate :
         block_mates(equal, rank_, static_cast<int32_t>(replica_), slot_.relay)) {
      if (received > 0) out_.relay_sends.push_back({mate, 0, received});
      const auto head = static_cast<int32_t>(layout.full_replica_index(mate));
      const int64_t begin = cursor.total();
      std::vector<Region> as_forwarded;
      for (const int64_t m : by_rank_) {
        if (head_replica(head, replica(m), slot_.relay, replicas_) == head)
          add_back(m, cursor, as_forwarded);
      }
      if (as_forwarded.empty()) continue;
      const Region& last = as_forwarded.back();
      out_.relay_receives.push_back({mate, begin, last.offset + last.bytes - begin});
    }
  }

  const Plan& plan_;
  const Slot& slot_;
  int32_t rank_;
  SlotPlan& out_;
  std::vector<int> members_;         // ranks that hold what this one holds, in replica order
  std::vector<int64_t> by_rank_;     // numbers of members by ascending rank
  std::vector<int32_t> replica_of_;  // of members
  int32_t replicas_ = 0;
  int64_t me_ = 0, replica_ = 0;
  bool split_ = false;  // gradients have layouts of their own
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

void add_slices(const Plan& plan, const Slot& slot, int32_t rank, SlotPlan& out) {
  SliceSlot(plan, slot, rank, out);
}

}  // namespace muonrt
