#include "plan/report/traffic.hpp"

#include <algorithm>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/hash.hpp"
#include "plan/buffers.hpp"
#include "plan/callback_chunks.hpp"
#include "plan/messages.hpp"
#include "plan/state_memory.hpp"

namespace muonrt {

namespace {

/// A message between one owner and one peer: its elements, and a hash of (matrix, shard index).
struct Message {
  int64_t numel = 0;
  Hash content;
  void add(const MessageEntry& entry) {
    numel += entry.numel;
    content.value(static_cast<int64_t>(entry.matrix));
    content.value(static_cast<int64_t>(entry.holder.shard));
  }
};

class Measurement {
 public:
  explicit Measurement(const Plan& plan)
      : plan_(plan),
        blocks_(plan.problem().params, plan.holders()),
        buffers_(ranks()),
        taken_(ranks(), RankBuffers(plan.problem().options)),
        gather_(ranks()),
        back_(ranks()),
        returns_(ranks()),
        direct_(ranks()) {
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
    if (chunk.relay > 0) add_relay();
    for (const size_t r : touched_) {
      ChunkBytes& now = buffers_[r];
      if (now == ChunkBytes()) continue;  // listed twice in touched_
      end_chunk(r, now);
      now = {};
    }
    touched_.clear();
  }

  void end_chunk(size_t rank, const ChunkBytes& now) {
    send_to(rank, returns_[rank]);
    returns_[rank] = 0;
    taken_[rank].add(chunk_index_, now);
    ++out_.ranks[rank].chunks;
  }

  /// A chunk that the caller's functions transfer: no messages, but buffers on every rank.
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
    MatrixMessages messages(plan_, blocks_, *chunk_);
    std::vector<int32_t> ids = chunk_->matrices;
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return matrix(a).owner < matrix(b).owner; });
    for (size_t i = 0; i < ids.size();) {
      const int32_t owner = matrix(ids[i]).owner;
      for (; i < ids.size() && matrix(ids[i]).owner == owner; ++i) add_matrix(ids[i], messages);
      end_owner(static_cast<size_t>(owner));
    }
  }

  void add_matrix(int32_t id, MatrixMessages& messages) {
    const Matrix& m = matrix(id);
    const auto owner = static_cast<size_t>(m.owner);
    ++out_.ranks[owner].owned;
    if (chunk_->kind == ChunkKind::kPartialGrads) {
      const int64_t numel = m.rows * m.cols;
      add_sum(owner, numel, m.param);
      add(owner, kDirectionBytes, numel * size_of(chunk_->return_dtype));
    }
    int64_t& moved = out_.moved[static_cast<size_t>(m.param)];
    const int64_t gather_size = size_of(chunk_->gather_dtype);
    const int64_t back_size = size_of(chunk_->return_dtype);
    messages.for_each(id, kEveryRank, [&](const MessageEntry& entry) {
      const bool gathers = entry.exchange == Exchange::kGather;
      if (entry.from != entry.to) moved += entry.numel * (gathers ? gather_size : back_size);
      if (entry.exchange == Exchange::kRelay) return;
      const auto peer = static_cast<size_t>(entry.holder.rank);
      if (back_[peer].numel == 0 && gather_[peer].numel == 0) peers_.push_back(peer);
      (gathers ? gather_ : back_)[peer].add(entry);
    });
  }

  /// Adds the messages between `owner` and its peers to the buffers of both.
  void end_owner(size_t owner) {
    const int64_t gather_size = size_of(chunk_->gather_dtype);
    const int64_t back_size = size_of(chunk_->return_dtype);
    // Partial gradients have separate receive buffers. Directions arrive in the buffer that the
    // return sends from.
    const bool shared = chunk_->kind == ChunkKind::kDirections;
    std::unordered_set<uint64_t> known;
    for (const size_t r : peers_) {
      const int64_t bytes = gather_[r].numel * gather_size;
      gather(r, owner, bytes);
      if (!shared) continue;
      if (bytes > 0) known.insert(gather_[r].content.digest());
      add(owner, kReturnSend, bytes);
    }
    for (const size_t r : peers_) {
      const int64_t bytes = back_[r].numel * back_size;
      if (bytes > 0) {
        if (known.insert(back_[r].content.digest()).second) add(owner, kReturnSend, bytes);
        give_back(owner, r, bytes);
      }
      gather_[r] = back_[r] = {};
    }
    touched_.insert(touched_.end(), peers_.begin(), peers_.end());
    touched_.push_back(owner);
    peers_.clear();
  }

  void gather(size_t from, size_t owner, int64_t bytes) {
    add(from, kGatherSend, bytes);
    add(owner, kGatherReceive, bytes);
    move(from, owner, bytes, out_.chunks.back().gather);
  }

  /// Adds a message of a return. If the chunk is relayed, the rank forwards it together with the
  /// messages of all other owners.
  void give_back(size_t owner, size_t rank, int64_t bytes) {
    direct_[rank] = buffers_[rank][kReturnReceive] + bytes;
    add(rank, kReturnReceive, bytes);
    if (chunk_->relay > 0) relaying_.push_back(rank);
    returns_[owner] += rank != owner;
    move(owner, rank, bytes, out_.chunks.back().back);
  }

  void send_to(size_t rank, int64_t others) {
    out_.ranks[rank].peers = std::max(out_.ranks[rank].peers, others);
  }

  /// Adds the second level: the ranks to which owners returned forward to the others in their
  /// blocks.
  void add_relay() {
    const Layout& layout = front_layout(plan_, *chunk_);
    std::sort(relaying_.begin(), relaying_.end());
    relaying_.erase(std::unique(relaying_.begin(), relaying_.end()), relaying_.end());
    std::vector<int64_t> received;
    for (const size_t r : relaying_) received.push_back(direct_[r]);
    for (size_t i = 0; i < relaying_.size(); ++i) {
      const auto to = forwards_to(layout, static_cast<int32_t>(relaying_[i]), chunk_->relay);
      for (const int32_t rank : to) {
        const auto mate = static_cast<size_t>(rank);
        add(mate, kReturnReceive, received[i]);
        move(relaying_[i], mate, received[i], out_.chunks.back().back);
        touched_.push_back(mate);
      }
      send_to(relaying_[i], std::ssize(to));
    }
    relaying_.clear();
  }

  /// Counts a message between two ranks, and adds it to the bytes of its exchange.
  void move(size_t from, size_t to, int64_t bytes, int64_t& exchange) {
    if (from == to || bytes == 0) return;
    exchange += bytes;
    ++out_.ranks[from].messages;
    out_.ranks[from].sent += bytes;
    out_.ranks[to].received += bytes;
  }

  void add_slices() {
    const Layout& layout = front_layout(plan_, *chunk_);
    for (int64_t s = 0; s < layout.shard_count(); ++s)
      add_group(SliceGroup(plan_, *chunk_, layout.rank_of(0, s)), layout.partial_count());
    const auto front = static_cast<size_t>(chunk_->segments.front().param);
    if (plan_.problem().params[front].grad_layout) add_split_gather();
  }

  /// Adds the gather of gradients with a separate layout to the owners of slices.
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
      gather(static_cast<size_t>(from), static_cast<size_t>(to), message);
      touched_.push_back(static_cast<size_t>(from));
    });
  }

  /// Each rank sends to the owners in its replica. Each owner returns to all others, or to the
  /// ranks that forward.
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
      touched_.push_back(static_cast<size_t>(owner.rank));
    }
    group.for_each(kEveryRank, [&](Exchange exchange, const auto& from, const auto& to) {
      const auto sender = static_cast<size_t>(from.rank), receiver = static_cast<size_t>(to.rank);
      if (exchange == Exchange::kGather) return gather(sender, receiver, to.numel * gather_size);
      give_back(sender, receiver, from.numel * back_size);
    });
  }

  /// Adds a sum in f32 and its state.
  void add_sum(size_t rank, int64_t numel, int32_t param) {
    add(rank, kSums, numel * 4);
    out_.ranks[rank].memory.state_bytes +=
        numel * moment_bytes(plan_.problem().params[static_cast<size_t>(param)]);
  }

  void add(size_t rank, ChunkBuffer buffer, int64_t bytes) {
    buffers_[rank][buffer] += round_up(bytes, kMessageAlignment);
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
  std::vector<ChunkBytes> buffers_;     // by rank, this chunk
  std::vector<RankBuffers> taken_;      // by rank
  std::vector<Message> gather_, back_;  // by peer, for the current owner
  std::vector<int64_t> returns_;        // other ranks that each owner returns to in this chunk
  std::vector<int64_t> direct_;         // bytes of the return that owners sent to each rank
  std::vector<size_t> relaying_;        // ranks that forward in this chunk
  std::vector<size_t> peers_,
      touched_;  // ranks of this owner; ranks of this chunk, with repetitions
  const ChunkSpec* chunk_ = nullptr;
  int32_t chunk_index_ = 0;
  PlanTraffic out_;
};

}  // namespace

PlanTraffic measure_traffic(const Plan& plan) { return Measurement(plan).take(); }

}  // namespace muonrt
