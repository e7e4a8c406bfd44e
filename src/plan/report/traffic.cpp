#include "plan/report/traffic.hpp"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "plan/buffers.hpp"
#include "plan/callback_chunks.hpp"
#include "plan/report/owner_messages.hpp"
#include "plan/state_memory.hpp"

namespace muonrt {

namespace {

/// The messages that a rank exchanges with owners in a chunk. Measurement::peers_ stores the
/// difference between each rank's value and the previous rank's, so two additions change a whole
/// range of ranks.
struct PeerSums {
  int64_t gather_send = 0, return_receive = 0, sent = 0, received = 0, messages = 0;
  void add(const PeerSums& other, int64_t sign = 1) {
    gather_send += sign * other.gather_send;
    return_receive += sign * other.return_receive;
    sent += sign * other.sent;
    received += sign * other.received;
    messages += sign * other.messages;
  }
};

class Measurement {
 public:
  explicit Measurement(const Plan& plan)
      : plan_(plan),
        blocks_(plan.problem().params, plan.holders()),
        buffers_(ranks()),
        taken_(ranks(), RankBuffers(plan.problem().options)),
        peers_(ranks() + 1),
        returns_(ranks()),
        unaligned_(ranks()) {
    out_.ranks.resize(ranks());
    out_.moved.assign(plan.problem().params.size(), 0);
    for (const ChunkSpec& chunk : plan.chunks()) {
      add_chunk(chunk);
      ++chunk_index_;
    }
    add_memory();
    for (const int64_t bytes : out_.moved) out_.moved_total += bytes;
  }
  PlanTraffic take() { return std::move(out_); }

 private:
  size_t ranks() const { return static_cast<size_t>(plan_.problem().options.world); }
  const Matrix& matrix(int32_t id) const { return plan_.matrices()[static_cast<size_t>(id)]; }

  void add_chunk(const ChunkSpec& chunk) {
    chunk_ = &chunk;
    out_.chunks.emplace_back();
    if (chunk.by_callback) return add_callback(chunk);
    if (chunk.kind == ChunkKind::kSlices) {
      add_slices();
    } else {
      add_matrices();
    }
    end_peers();
    if (chunk.relay > 0) add_relay();
    for (size_t r = 0; r < ranks(); ++r) {
      ChunkBytes& now = buffers_[r];
      if (now == ChunkBytes()) continue;  // The rank does not take part in the chunk.
      end_chunk(r, now);
      now = {};
    }
  }

  /// Computes the sums of the peers from their differences, and adds them to the ranks.
  void end_peers() {
    PeerSums now;
    for (size_t r = 0; r < ranks(); ++r) {
      now.add(peers_[r]);
      buffers_[r][kGatherSend] += now.gather_send;
      buffers_[r][kReturnReceive] += now.return_receive;
      out_.ranks[r].sent += now.sent;
      out_.ranks[r].received += now.received;
      out_.ranks[r].messages += now.messages;
    }
    std::fill(peers_.begin(), peers_.end(), PeerSums());
  }

  void end_chunk(size_t rank, const ChunkBytes& now) {
    send_to(rank, returns_[rank]);
    returns_[rank] = 0;
    taken_[rank].add(chunk_index_, now);
    ++out_.ranks[rank].chunks;
  }

  /// Adds a chunk that the caller's functions transfer. It has no messages, but every rank has
  /// buffers for it.
  void add_callback(const ChunkSpec& chunk) {
    std::vector<ChunkBytes> bytes(ranks());
    int32_t previous = -1;
    for_each_callback_owner(
        plan_, chunk, [&](int32_t param, int32_t owner, const std::vector<int32_t>& ids) {
          const auto o = static_cast<size_t>(owner);
          out_.ranks[o].owned += static_cast<int32_t>(ids.size());
          bytes[o][kGatherReceive] += callback_owner_bytes(plan_, ids);
          if (param == previous) return;
          previous = param;
          for (size_t r = 0; r < ranks(); ++r)
            bytes[r][kGatherSend] += callback_local_bytes(plan_, param, static_cast<int>(r));
        });
    for (size_t r = 0; r < ranks(); ++r) {
      bytes[r][kReturnReceive] = bytes[r][kGatherSend];
      bytes[r][kReturnSend] = bytes[r][kGatherReceive];
      end_chunk(r, bytes[r]);
    }
  }

  void add_matrices() {
    std::vector<int32_t> ids = chunk_->matrices;
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return matrix(a).owner < matrix(b).owner; });
    OwnerMessages messages(plan_, blocks_, *chunk_);
    for (size_t i = 0, first = 0; i < ids.size(); i = first) {
      while (first < ids.size() && matrix(ids[first]).owner == matrix(ids[i]).owner) ++first;
      add_owner(static_cast<size_t>(matrix(ids[i]).owner), {ids.data() + i, ids.data() + first},
                messages);
    }
  }

  /// Adds the messages between `owner` and its peers to the buffers of all these ranks.
  void add_owner(size_t owner, std::span<const int32_t> ids, OwnerMessages& messages) {
    const int64_t gather_size = size_of(chunk_->gather_dtype);
    const int64_t back_size = size_of(chunk_->return_dtype);
    out_.ranks[owner].owned += static_cast<int32_t>(ids.size());
    for (const int32_t id : ids) add_matrix(matrix(id), owner, messages);
    // The gather of partial gradients has separate receive buffers. Directions are received in the
    // buffer from which the return is sent.
    const bool shared = chunk_->kind == ChunkKind::kDirections;
    std::unordered_set<uint64_t> known;
    for (const RankRange& m : messages.of(ids, Exchange::kGather)) {
      gather(m.first, m.count, owner, m.numel * gather_size);
      if (!shared) continue;
      known.insert(m.content);
      add(owner, kReturnSend, m.numel * back_size, m.count);
    }
    for (const RankRange& m : messages.of(ids, Exchange::kReturn)) {
      if (known.insert(m.content).second) add(owner, kReturnSend, m.numel * back_size, m.count);
      give_back(owner, m.first, m.count, m.numel * back_size);
    }
  }

  /// Adds the memory for the sum of a matrix, and the bytes that are exchanged for it.
  void add_matrix(const Matrix& m, size_t owner, OwnerMessages& messages) {
    const int64_t numel = m.rows * m.cols;
    if (chunk_->kind == ChunkKind::kPartialGrads) {
      add_sum(owner, numel, m.param);
      add(owner, kDirectionBytes, numel * size_of(chunk_->return_dtype));
    }
    const HolderGroup& gathered = messages.group_of(m, Exchange::kGather);
    const Holder* own = gathered.find(m.owner);
    const bool holds = own != nullptr && own->replica == m.grad_replica;
    int64_t& moved = out_.moved[static_cast<size_t>(m.param)];
    moved += size_of(chunk_->gather_dtype) *
             (numel * gathered.partial_count -
              (holds ? numel_of(messages.runs_of(m, Exchange::kGather), own->shard) : 0));
    if (plan_.every_rank()) return;
    const HolderGroup& group = messages.group_of(m, Exchange::kReturn);
    const int64_t replicas = plan_.each_replica() ? 1 : group.replicas;
    moved += size_of(chunk_->return_dtype) *
             (numel * group.partial_count * replicas -
              numel_of(messages.runs_of(m, Exchange::kReturn), group.find(m.owner)->shard));
  }

  void add_peers(int32_t first, int32_t count, const PeerSums& each) {
    peers_[static_cast<size_t>(first)].add(each);
    peers_[static_cast<size_t>(first + count)].add(each, -1);
  }

  /// Adds a message of `bytes` to `owner` from each of the ranks in the range. A message of the
  /// owner to itself is stored only once.
  void gather(int32_t first, int32_t count, size_t owner, int64_t bytes) {
    const auto self = static_cast<int32_t>(owner);
    const bool own = first <= self && self < first + count;
    const int64_t others = count - own;
    add_peers(first, count, {round_up(bytes, kMessageAlignment), 0, bytes, 0, 1});
    if (own) add_peers(self, 1, {-round_up(bytes, kMessageAlignment), 0, -bytes, 0, -1});
    add(owner, kGatherReceive, bytes, count);
    out_.ranks[owner].received += others * bytes;
    out_.chunks.back().gather += others * bytes;
  }

  /// Adds a message of a return to each of the ranks in the range. If the return has two levels,
  /// these ranks forward it together with the messages of all other owners.
  void give_back(size_t owner, int32_t first, int32_t count, int64_t bytes) {
    const auto self = static_cast<int32_t>(owner);
    const bool own = first <= self && self < first + count;
    const int64_t others = count - own, aligned = round_up(bytes, kMessageAlignment);
    add_peers(first, count, {0, aligned, 0, bytes, 0});
    if (own) add_peers(self, 1, {0, 0, 0, -bytes, 0});
    if (own) buffers_[owner][kReturnSend] -= aligned;
    if (chunk_->relay > 0) std::fill_n(unaligned_.begin() + first, count, aligned - bytes);
    returns_[owner] += others;
    out_.ranks[owner].messages += others;
    out_.ranks[owner].sent += others * bytes;
    out_.chunks.back().back += others * bytes;
  }

  void send_to(size_t rank, int64_t others) {
    out_.ranks[rank].peers = std::max(out_.ranks[rank].peers, others);
  }

  /// Adds the second level of a return. Each rank forwards the data that it has received from
  /// owners to the ranks in its block that hold the same shard. The forwarded messages are
  /// contiguous, and only the end of the last one is not aligned.
  void add_relay() {
    const Layout& layout = front_layout(plan_, *chunk_);
    const std::vector<int> full = layout.full_replica_dims();
    const int64_t replicas = layout.full_replicas();
    std::vector<size_t> block;
    std::vector<int64_t> direct;
    for (const int32_t rank : layout.mesh().ranks()) {
      const int64_t first = layout.full_replica_index(rank);
      if (first % chunk_->relay != 0) continue;
      block.clear();
      direct.clear();
      int64_t sum = 0, aligned = 0;
      for (int64_t r = first; r < std::min(replicas, first + chunk_->relay); ++r) {
        block.push_back(static_cast<size_t>(layout.equal_holder(rank, r, full)));
        const size_t one = block.back();
        direct.push_back(buffers_[one][kReturnReceive] - std::exchange(unaligned_[one], 0));
        sum += direct.back();
        aligned += round_up(direct.back(), kMessageAlignment);
      }
      const int64_t mates = std::ssize(block) - 1;
      for (size_t i = 0; i < block.size(); ++i) {
        RankTraffic& of = out_.ranks[block[i]];
        buffers_[block[i]][kReturnReceive] += aligned - round_up(direct[i], kMessageAlignment);
        of.received += sum - direct[i];
        if (direct[i] == 0) continue;
        of.sent += mates * direct[i];
        of.messages += mates;
        out_.chunks.back().back += mates * direct[i];
        send_to(block[i], mates);
      }
    }
  }

  void add_slices() {
    const Layout& layout = front_layout(plan_, *chunk_);
    for (int64_t s = 0; s < layout.shard_count(); ++s)
      add_group(SliceGroup(plan_, *chunk_, layout.rank_of(0, s)), layout.partial_count());
    const auto front = static_cast<size_t>(chunk_->segments.front().param);
    if (plan_.problem().params[front].grad_layout) add_split_gather();
  }

  /// Adds the gather of gradients with a separate layout. These gradients are sent to the owners of
  /// slices.
  void add_split_gather() {
    const int64_t element = size_of(chunk_->gather_dtype);
    SplitGather split(plan_, *chunk_);
    split.for_each(kEveryRank, [&](int32_t from, int32_t to, const auto& shares) {
      int64_t message = 0;
      for (const auto& [s, blocks] : shares) {
        int64_t bytes = 0;
        for (const SharedBlock& b : blocks) bytes += b.rows * b.cols * element;
        if (from != to) out_.moved[static_cast<size_t>(chunk_->segments[s].param)] += bytes;
        message += bytes;
      }
      gather(from, 1, static_cast<size_t>(to), message);
    });
  }

  /// Adds the messages of a group of ranks that hold the same elements. Each rank sends to the
  /// owners in its replica. Each owner sends the new values to all other ranks or, if the return
  /// has two levels, to the ranks that forward them.
  void add_group(const SliceGroup& group, int64_t partial_grads) {
    const int64_t gather_size = size_of(chunk_->gather_dtype);
    const int64_t back_size = size_of(chunk_->return_dtype);
    const int64_t elsewhere =
        (partial_grads - 1) * gather_size + (std::ssize(group.members()) - 1) * back_size;
    for (const SliceGroup::Member& owner : group.members()) {
      for (size_t s = 0; s < chunk_->segments.size(); ++s) {
        const auto [begin, end] = group.range(s, owner);
        const int32_t param = chunk_->segments[s].param;
        add_sum(static_cast<size_t>(owner.rank), end - begin, param);
        out_.moved[static_cast<size_t>(param)] += (end - begin) * elsewhere;
      }
      add(static_cast<size_t>(owner.rank), kReturnSend, owner.numel * back_size);
    }
    group.for_each(kEveryRank, [&](Exchange exchange, const auto& from, const auto& to) {
      if (exchange == Exchange::kGather)
        return gather(from.rank, 1, static_cast<size_t>(to.rank), to.numel * gather_size);
      give_back(static_cast<size_t>(from.rank), to.rank, 1, from.numel * back_size);
    });
  }

  /// Adds the memory for an f32 sum and for the state of its elements.
  void add_sum(size_t rank, int64_t numel, int32_t param) {
    add(rank, kSums, numel * 4);
    out_.ranks[rank].memory.state_bytes +=
        numel * moment_bytes(plan_.problem().params[static_cast<size_t>(param)]);
  }

  void add(size_t rank, ChunkBuffer buffer, int64_t bytes, int64_t count = 1) {
    buffers_[rank][buffer] += count * round_up(bytes, kMessageAlignment);
  }

  void add_memory() {
    const LocalBytes local = local_bytes(plan_);
    for (size_t r = 0; r < ranks(); ++r) {
      RankTraffic& rank = out_.ranks[r];
      rank.memory.message_bytes = taken_[r].message_bytes();
      rank.memory.staged_bytes = taken_[r].staged_bytes();
      rank.moment_bytes = rank.memory.state_bytes + local.moments[r];
      rank.memory.state_bytes = rank.moment_bytes + local.own_masters[r];
      rank.param_bytes = local.params[r];
      rank.grad_bytes = local.grads[r];
      rank.master_bytes = local.masters[r];
    }
  }

  const Plan& plan_;
  BlockTable blocks_;
  std::vector<ChunkBytes> buffers_;  // one for each rank: buffers of the current chunk
  std::vector<RankBuffers> taken_;   // one for each rank
  std::vector<PeerSums> peers_;      // current chunk: differences between neighboring ranks
  // Current chunk: for each owner, the number of other ranks to which it sends updates.
  std::vector<int64_t> returns_;
  // Two levels: the bytes from the end of a rank's last message to the next aligned position.
  std::vector<int64_t> unaligned_;
  const ChunkSpec* chunk_ = nullptr;
  int32_t chunk_index_ = 0;
  PlanTraffic out_;
};

/// Returns true if products of another chunk in the same window may run during an exchange of chunk
/// `s`: for the gather, products of earlier chunks; for the return, products of later chunks.
bool overlaps(const Plan& plan, int64_t s, bool gather) {
  const int64_t others = plan.problem().options.window - 1;
  const int64_t first = gather ? s - others : s + 1, last = gather ? s - 1 : s + others;
  for (int64_t k = std::max<int64_t>(first, 0); k <= last && k < std::ssize(plan.chunks()); ++k)
    if (!plan.chunks()[static_cast<size_t>(k)].matrices.empty()) return true;
  return false;
}

}  // namespace

PlanTraffic measure_traffic(const Plan& plan) { return Measurement(plan).take(); }

int64_t hidden_bytes(const Plan& plan, const PlanTraffic& traffic) {
  int64_t out = 0;
  for (size_t s = 0; s < plan.chunks().size(); ++s) {
    if (overlaps(plan, static_cast<int64_t>(s), true)) out += traffic.chunks[s].gather;
    if (overlaps(plan, static_cast<int64_t>(s), false)) out += traffic.chunks[s].back;
  }
  return out;
}

}  // namespace muonrt
