#include "plan/traffic.hpp"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/hash.hpp"
#include "plan/carried.hpp"
#include "plan/relay.hpp"
#include "plan/slice_sources.hpp"
#include "plan/slices.hpp"
#include "plan/slots.hpp"
#include "plan/state_memory.hpp"

namespace muonrt {

namespace {

/// Message between one owner and one peer: elements, and a digest of (matrix, shard slot).
struct Message {
  int64_t numel = 0;
  Hash content;
  void add(int32_t matrix, int32_t slot, int64_t more) {
    numel += more;
    content.value(static_cast<int64_t>(matrix));
    content.value(static_cast<int64_t>(slot));
  }
};

class Measurement {
 public:
  explicit Measurement(const Plan& plan)
      : plan_(plan),
        blocks_(plan.problem().params, plan.holders()),
        sizes_(static_cast<size_t>(plan.holders().kinds())),
        grad_sizes_(sizes_.size()),
        buffers_(ranks()),
        largest_(ranks()),
        gather_(ranks()),
        back_(ranks()),
        direct_(ranks()) {
    out_.ranks.resize(ranks());
    out_.moved.assign(plan.problem().params.size(), 0);
    for (const Slot& slot : plan.slots()) add_slot(slot);
    add_memory();
    for (const int64_t bytes : out_.moved) out_.moved_total += bytes;
  }
  PlanTraffic take() { return std::move(out_); }

 private:
  size_t ranks() const { return static_cast<size_t>(plan_.problem().options.world); }
  const Matrix& matrix(int32_t id) const { return plan_.matrices()[static_cast<size_t>(id)]; }

  /// Elements of a matrix on each shard slot.
  const std::vector<int64_t>& sizes_of(const Matrix& m, const HolderGroup& group) {
    auto& sizes = sizes_[static_cast<size_t>(plan_.holders().kind(m.param, m.index))];
    if (sizes.empty()) {
      sizes.resize(static_cast<size_t>(group.slots));
      for (const HolderPlace& p : group.places) {
        if (p.replica == 0 && p.addend == 0)
          sizes[static_cast<size_t>(p.slot)] = blocks_.numel(m.param, m.index, p);
      }
    }
    return sizes;
  }

  void add_slot(const Slot& slot) {
    slot_ = &slot;
    if (slot.carried >= 0) return add_carried(slot);
    if (slot.kind == SlotKind::kSlices) add_slices();
    std::vector<int32_t> ids = slot.matrices;
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return matrix(a).owner < matrix(b).owner; });
    for (size_t i = 0; i < ids.size();) {
      const int32_t owner = matrix(ids[i]).owner;
      for (; i < ids.size() && matrix(ids[i]).owner == owner; ++i) add_matrix(ids[i]);
      end_owner(static_cast<size_t>(owner));
    }
    if (slot.relay > 0 && !ids.empty()) {
      const Layout& layout =
          plan_.problem().params[static_cast<size_t>(matrix(ids.front()).param)].layout;
      add_relay(layout);
    }
    for (const size_t r : touched_) {
      SlotBytes& now = buffers_[r];
      if (now == SlotBytes()) continue;  // met twice
      end_slot(r, now);
      now = {};
    }
    touched_.clear();
  }

  void end_slot(size_t rank, const SlotBytes& now) {
    largest_[rank].cover(now);
    out_.ranks[rank].memory.staged_bytes += now[kReturnReceive] + now[kSums];
    ++out_.ranks[rank].slots;
  }

  /// Nothing that we move; buffers on every rank.
  void add_carried(const Slot& slot) {
    const auto owner = static_cast<size_t>(matrix(slot.matrices.front()).owner);
    out_.ranks[owner].owned += static_cast<int32_t>(slot.matrices.size());
    const int64_t full = carried_full_bytes(plan_, slot.carried);
    for (size_t r = 0; r < ranks(); ++r) {
      const int64_t local = carried_local_bytes(plan_, slot.carried, static_cast<int>(r));
      const int64_t whole = r == owner ? full : 0;
      SlotBytes bytes;
      bytes[kGatherSend] = bytes[kReturnReceive] = local;
      bytes[kGatherReceive] = bytes[kReturnSend] = whole;
      end_slot(r, bytes);
    }
  }

  void add_matrix(int32_t id) {
    const Matrix& m = matrix(id);
    const HolderGroup& group = plan_.holders().group(m.param, m.index);
    const std::vector<int64_t>& sizes = sizes_of(m, group);
    const auto owner = static_cast<size_t>(m.owner);
    ++out_.ranks[owner].owned;
    if (slot_->kind == SlotKind::kAddends) {
      const int64_t numel = m.rows * m.cols;
      add_sum(owner, numel, m.param);
      add(owner, kDirectionBytes, numel * size_of(slot_->return_dtype));
    }
    add_gathered(id);
    for (const HolderPlace& p : group.places) {
      const int64_t numel = sizes[static_cast<size_t>(p.slot)];
      if (numel == 0 || (plan_.each_replica() && p.replica != m.replica)) continue;
      const auto r = static_cast<size_t>(p.rank);
      const bool direct =
          slot_->relay == 0 ||
          p.replica == head_replica(p.replica, m.replica, slot_->relay, group.replicas);
      if (direct) {
        meet(r);
        back_[r].add(id, p.slot, numel);
      }
      if (p.rank != m.owner)
        out_.moved[static_cast<size_t>(m.param)] += numel * size_of(slot_->return_dtype);
    }
  }

  void meet(size_t rank) {
    if (back_[rank].numel == 0 && gather_[rank].numel == 0) peers_.push_back(rank);
  }

  void add_gathered(int32_t id) {
    const Matrix& m = matrix(id);
    for (const HolderPlace& p : plan_.holders().grad_group(m.param, m.index).places) {
      if (p.replica != m.grad_replica) continue;
      const int64_t numel = grad_numel(m, p);
      if (numel == 0) continue;
      const auto r = static_cast<size_t>(p.rank);
      meet(r);
      gather_[r].add(id, p.slot, numel);
      if (p.rank != m.owner)
        out_.moved[static_cast<size_t>(m.param)] += numel * size_of(slot_->gather_dtype);
    }
  }

  int64_t grad_numel(const Matrix& m, const HolderPlace& place) {
    const auto kind = static_cast<size_t>(plan_.holders().grad_kind(m.param, m.index));
    const auto slot = static_cast<size_t>(place.slot);
    std::vector<int64_t>& sizes = grad_sizes_[kind];
    if (sizes.size() <= slot) sizes.resize(slot + 1, -1);
    if (sizes[slot] < 0) {
      sizes[slot] = 0;
      for (const Block& b : blocks_.grad_blocks(m.param, m.index, place)) sizes[slot] += b.numel();
    }
    return sizes[slot];
  }

  /// Adds the messages between `owner` and its peers to the buffers of both.
  void end_owner(size_t owner) {
    const int64_t gather_size = size_of(slot_->gather_dtype);
    const int64_t back_size = size_of(slot_->return_dtype);
    // Addends arrive in buffers of their own; directions lie where the return is packed.
    const bool shared = slot_->kind == SlotKind::kDirections;
    std::unordered_set<uint64_t> known;
    for (const size_t r : peers_) {
      const int64_t bytes = gather_[r].numel * gather_size;
      add(r, kGatherSend, bytes);
      add(owner, kGatherReceive, bytes);
      if (!shared) continue;
      if (bytes > 0) known.insert(gather_[r].content.digest());
      add(owner, kReturnSend, bytes);
    }
    int64_t others = 0;
    for (const size_t r : peers_) {
      const int64_t gathered = gather_[r].numel * gather_size, bytes = back_[r].numel * back_size;
      if (r != owner) move(r, owner, gathered);
      if (bytes == 0) {
        gather_[r] = {};
        continue;
      }
      receive(r, bytes);
      if (known.insert(back_[r].content.digest()).second) add(owner, kReturnSend, bytes);
      if (r != owner) {
        move(owner, r, bytes);
        ++others;
      }
      gather_[r] = back_[r] = {};
    }
    send_to(owner, others);
    touched_.insert(touched_.end(), peers_.begin(), peers_.end());
    touched_.push_back(owner);
    peers_.clear();
  }

  /// A message of an owner's; in two levels it goes on with all others that the rank gets.
  void receive(size_t rank, int64_t bytes) {
    direct_[rank] = buffers_[rank][kReturnReceive] + bytes;
    add(rank, kReturnReceive, bytes);
    if (slot_->relay > 0) relaying_.push_back(rank);
  }

  void send_to(size_t rank, int64_t others) {
    out_.ranks[rank].peers = std::max(out_.ranks[rank].peers, others);
  }

  /// The second level: ranks that owners sent to forward it to the others of their blocks.
  void add_relay(const Layout& layout) {
    std::sort(relaying_.begin(), relaying_.end());
    relaying_.erase(std::unique(relaying_.begin(), relaying_.end()), relaying_.end());
    std::vector<int64_t> received;
    for (const size_t r : relaying_) received.push_back(direct_[r]);
    for (size_t i = 0; i < relaying_.size(); ++i) {
      const auto rank = static_cast<int32_t>(relaying_[i]);
      const auto replica = static_cast<int32_t>(layout.full_replica_index(rank));
      const auto mates = block_mates(layout.equal_holders(rank), rank, replica, slot_->relay);
      for (const int32_t mate : mates) {
        const auto to = static_cast<size_t>(mate);
        add(to, kReturnReceive, received[i]);
        move(relaying_[i], to, received[i]);
        touched_.push_back(to);
      }
      send_to(relaying_[i], std::ssize(mates));
    }
    relaying_.clear();
  }

  void move(size_t from, size_t to, int64_t bytes) {
    if (bytes > 0) ++out_.ranks[from].messages;
    out_.ranks[from].sent += bytes;
    out_.ranks[to].received += bytes;
  }

  void add_slices() {
    const Layout& layout = layout_of(slot_->segments.front());
    for (int64_t s = 0; s < layout.shard_slots(); ++s) add_group(layout, layout.rank_of(0, s));
    if (slot_->relay > 0) add_relay(layout);
    if (spec_of(slot_->segments.front()).grad_layout) add_split_gather(layout);
  }

  const ParamSpec& spec_of(const Segment& s) const {
    return plan_.problem().params[static_cast<size_t>(s.param)];
  }
  const Layout& layout_of(const Segment& s) const { return spec_of(s).layout; }

  /// Gradients of layouts of their own, to the owners of slices.
  void add_split_gather(const Layout& layout) {
    const int64_t element = size_of(slot_->gather_dtype);
    std::vector<SliceSources> sources;
    for (const Segment& s : slot_->segments) sources.emplace_back(spec_of(s));
    for (const int32_t owner : layout.mesh().ranks()) {
      std::map<int, int64_t> numel;  // by holder
      for (size_t i = 0; i < sources.size(); ++i) {
        const Segment& s = slot_->segments[i];
        const auto [begin, end] = slice_at(layout_of(s), s, owner);
        if (begin == end) continue;
        for (const int holder : sources[i].holders(sources[i].replica_for(owner))) {
          int64_t count = 0;
          for (const SharedBlock& b : sources[i].shared(owner, begin, end, holder))
            count += b.rows * b.cols;
          if (count > 0) numel[holder] += count;
          if (holder != owner) out_.moved[static_cast<size_t>(s.param)] += count * element;
        }
      }
      const auto to = static_cast<size_t>(owner);
      for (const auto& [holder, count] : numel) {
        const auto from = static_cast<size_t>(holder);
        add(from, kGatherSend, count * element);
        add(to, kGatherReceive, count * element);
        if (from != to) move(from, to, count * element);
        touched_.push_back(from);
      }
    }
  }

  /// The ranks that hold what `one` holds: each sends to the owners in its replica, each owner to
  /// all others.
  void add_group(const Layout& layout, int one) {
    const std::vector<int> ranks = layout.replica_group(one);
    const auto members = static_cast<int64_t>(ranks.size());
    const int64_t gather_size = size_of(slot_->gather_dtype);
    const int64_t back_size = size_of(slot_->return_dtype);
    std::vector<int64_t> replica, owns(ranks.size(), 0);
    for (const int rank : ranks) replica.push_back(layout.full_replica_index(rank));
    for (int64_t m = 0; m < members; ++m) {
      const auto owner = static_cast<size_t>(ranks[static_cast<size_t>(m)]);
      for (const Segment& segment : slot_->segments) {
        const auto [begin, end] =
            slice_of(layout_of(segment).local_numel(one), segment, m, members);
        owns[static_cast<size_t>(m)] += end - begin;
        add_sum(owner, end - begin, segment.param);
        out_.moved[static_cast<size_t>(segment.param)] +=
            (end - begin) * ((layout.addends() - 1) * gather_size + (members - 1) * back_size);
      }
      touched_.push_back(owner);
    }
    const bool split = spec_of(slot_->segments.front()).grad_layout.has_value();
    const auto replicas = static_cast<int32_t>(layout.replicas() / layout.addends());
    const auto returns = [&](size_t o, size_t r) {
      if (slot_->relay == 0) return o != r;
      const auto to = static_cast<int32_t>(replica[r]);
      return to == head_replica(to, static_cast<int32_t>(replica[o]), slot_->relay, replicas);
    };
    for (const size_t o : by_rank(ranks)) {
      if (owns[o] == 0) continue;
      int64_t others = 0;
      const auto owner = static_cast<size_t>(ranks[o]);
      add(owner, kReturnSend, owns[o] * back_size);
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto rank = static_cast<size_t>(ranks[r]);
        if (!split && replica[r] == replica[o]) {
          add(rank, kGatherSend, owns[o] * gather_size);
          add(owner, kGatherReceive, owns[o] * gather_size);
          if (r != o) move(rank, owner, owns[o] * gather_size);
        }
        if (!returns(o, r)) continue;
        receive(rank, owns[o] * back_size);
        if (r == o) continue;
        move(owner, rank, owns[o] * back_size);
        ++others;
      }
      send_to(owner, others);
    }
  }

  /// Places in `ranks` by ascending rank, the order in which messages lie.
  static std::vector<size_t> by_rank(const std::vector<int>& ranks) {
    std::vector<size_t> out(ranks.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = i;
    std::sort(out.begin(), out.end(), [&](size_t a, size_t b) { return ranks[a] < ranks[b]; });
    return out;
  }

  /// A sum in f32, and the state that is kept with it.
  void add_sum(size_t rank, int64_t numel, int32_t param) {
    add(rank, kSums, numel * 4);
    out_.ranks[rank].memory.state_bytes +=
        numel * moment_bytes(plan_.problem().params[static_cast<size_t>(param)]);
  }

  void add(size_t rank, SlotBuffer buffer, int64_t bytes) {
    buffers_[rank][buffer] += round_up(bytes, kMessageAlignment);
  }

  void add_memory() {
    const PlanOptions& options = plan_.problem().options;
    const bool staged = options.commit == CommitMode::kAtomic;
    const std::vector<int64_t> state = local_state_bytes(plan_);
    for (size_t r = 0; r < ranks(); ++r) {
      MemoryPlan& memory = out_.ranks[r].memory;
      if (!staged) memory.staged_bytes = 0;
      memory.message_bytes = largest_[r].in_flight(options, out_.ranks[r].slots);
      memory.state_bytes += state[r];
    }
  }

  const Plan& plan_;
  BlockTable blocks_;
  std::vector<std::vector<int64_t>> sizes_, grad_sizes_;  // [kind][shard slot]
  std::vector<SlotBytes> buffers_, largest_;              // of each rank: in this slot, in any slot
  std::vector<Message> gather_, back_;                    // of each peer, with the owner at hand
  std::vector<int64_t> direct_;          // bytes of the return that owners sent to each rank
  std::vector<size_t> relaying_;         // ranks that forward in this slot
  std::vector<size_t> peers_, touched_;  // ranks met for this owner, in this slot
  const Slot* slot_ = nullptr;
  PlanTraffic out_;
};

}  // namespace

PlanTraffic measure_traffic(const Plan& plan) { return Measurement(plan).take(); }

}  // namespace muonrt
