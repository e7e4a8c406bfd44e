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

/// One rank's part in a slot of slices. All its segments lie over the same mesh dims, so the ranks
/// that it meets are the same for each.
class SliceSlot {
 public:
  SliceSlot(const Plan& plan, const Slot& slot, int32_t rank, SlotPlan& out)
      : plan_(plan), slot_(slot), rank_(rank), out_(out) {
    const Layout& layout = layout_of(slot.segments.front());
    members_ = layout.replica_group(rank);
    if (members_.empty()) return;
    me_ = layout.replica_index(rank);
    replica_ = layout.full_replica_index(rank);
    for (size_t m = 0; m < members_.size(); ++m) by_rank_.push_back(static_cast<int64_t>(m));
    std::sort(by_rank_.begin(), by_rank_.end(), [&](int64_t a, int64_t b) {
      return members_[static_cast<size_t>(a)] < members_[static_cast<size_t>(b)];
    });
    add_gather(layout);
    add_kept(layout);
    add_return();
  }

 private:
  const Layout& layout_of(const Segment& s) const {
    return plan_.problem().params[static_cast<size_t>(s.param)].layout;
  }
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
    // A rank that holds them alone packs them all the same: that is where its sums are looked at.
    const Region all = back.region(rank_);
    for (const int64_t m : by_rank_) {
      if (m != me_) out_.return_sends.push_back({rank_of(m), all.offset, all.bytes});
    }
    out_.return_send_bytes = back.total();
  }

  void add_return() {
    MessageCursor cursor(size_of(out_.return_dtype));
    for (const int64_t m : by_rank_) {
      if (m != me_) add_message(m, rank_of(m), cursor, out_.return_pieces, out_.return_receives);
    }
    out_.return_receive_bytes = cursor.total();
  }

  const Plan& plan_;
  const Slot& slot_;
  int32_t rank_;
  SlotPlan& out_;
  std::vector<int> members_;      // ranks that hold what this one holds, in replica order
  std::vector<int64_t> by_rank_;  // numbers of members by ascending rank
  int64_t me_ = 0, replica_ = 0;
};

}  // namespace

std::pair<int64_t, int64_t> slice_of(int64_t numel, const Segment& segment, int64_t member,
                                     int64_t members) {
  const auto [begin, end] = chunk(numel, segment.index, segment.count);
  const auto [first, last] = chunk(end - begin, member, members);
  return {begin + first, begin + last};
}

void add_slices(const Plan& plan, const Slot& slot, int32_t rank, SlotPlan& out) {
  SliceSlot(plan, slot, rank, out);
}

}  // namespace muonrt
