#include "plan/traffic.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/checked.hpp"
#include "base/hash.hpp"
#include "plan/carried.hpp"

namespace muonrt {

namespace {

enum Buffer : size_t { kGatherSend, kGatherReceive, kReturnSend, kReturnReceive, kBuffers };

/// Message between one owner and one peer: bytes, and a digest of (matrix, shard slot).
struct Message {
  int64_t bytes = 0;
  Hash content;
  void add(int32_t matrix, int32_t slot, int64_t more) {
    bytes += more;
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
        buffers_(ranks()),
        largest_(ranks()),
        gather_(ranks()),
        back_(ranks()) {
    out_.ranks.resize(ranks());
    out_.moved.assign(plan.problem().params.size(), 0);
    for (const Slot& slot : plan.slots()) add_slot(slot);
    add_memory();
    for (const int64_t bytes : out_.moved) out_.moved_total += bytes;
  }
  Traffic take() { return std::move(out_); }

 private:
  using Buffers = std::array<int64_t, kBuffers>;

  size_t ranks() const { return static_cast<size_t>(plan_.problem().options.world); }
  const Matrix& matrix(int32_t id) const { return plan_.matrices()[static_cast<size_t>(id)]; }

  /// Bytes of a matrix on each shard slot.
  const std::vector<int64_t>& sizes_of(const Matrix& m, const HolderGroup& group) {
    auto& sizes = sizes_[static_cast<size_t>(plan_.holders().kind(m.param, m.index))];
    if (sizes.empty()) {
      const int64_t element_bytes = size_of(plan_.problem().options.transport);
      sizes.resize(static_cast<size_t>(group.slots));
      for (const HolderPlace& p : group.places) {
        if (p.replica == 0)
          sizes[static_cast<size_t>(p.slot)] = blocks_.numel(m.param, m.index, p) * element_bytes;
      }
    }
    return sizes;
  }

  void add_slot(const Slot& slot) {
    if (slot.carried >= 0) return add_carried(slot);
    std::vector<int32_t> ids = slot.matrices;
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return matrix(a).owner < matrix(b).owner; });
    for (size_t i = 0; i < ids.size();) {
      const int32_t owner = matrix(ids[i]).owner;
      for (; i < ids.size() && matrix(ids[i]).owner == owner; ++i) add_matrix(ids[i]);
      end_owner(static_cast<size_t>(owner));
    }
    for (const size_t r : touched_) {
      Buffers& now = buffers_[r];
      if (now == Buffers{}) continue;  // met twice
      end_slot(r, now);
      now = {};
    }
    touched_.clear();
  }

  void end_slot(size_t rank, const Buffers& now) {
    for (size_t k = 0; k < kBuffers; ++k) largest_[rank][k] = std::max(largest_[rank][k], now[k]);
    out_.ranks[rank].memory.staged_bytes += now[kReturnReceive];
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
      end_slot(r, Buffers{local, whole, whole, local});
    }
  }

  void add_matrix(int32_t id) {
    const Matrix& m = matrix(id);
    const HolderGroup& group = plan_.holders().group(m.param, m.index);
    const std::vector<int64_t>& sizes = sizes_of(m, group);
    ++out_.ranks[static_cast<size_t>(m.owner)].owned;
    for (const HolderPlace& p : group.places) {
      const int64_t bytes = sizes[static_cast<size_t>(p.slot)];
      if (bytes == 0) continue;
      const auto r = static_cast<size_t>(p.rank);
      if (back_[r].bytes == 0) peers_.push_back(r);
      back_[r].add(id, p.slot, bytes);
      const bool gathered = p.replica == m.replica;
      if (gathered) gather_[r].add(id, p.slot, bytes);
      if (p.rank != m.owner) out_.moved[static_cast<size_t>(m.param)] += bytes * (gathered ? 2 : 1);
    }
  }

  /// Adds the messages between `owner` and its peers to the buffers of both.
  void end_owner(size_t owner) {
    std::unordered_set<uint64_t> known;
    for (const size_t r : peers_) {
      if (gather_[r].bytes > 0) known.insert(gather_[r].content.digest());
      add(r, kGatherSend, gather_[r].bytes);
      add(owner, kGatherReceive, gather_[r].bytes);
      add(owner, kReturnSend, gather_[r].bytes);
    }
    for (const size_t r : peers_) {
      add(r, kReturnReceive, back_[r].bytes);
      if (known.insert(back_[r].content.digest()).second) add(owner, kReturnSend, back_[r].bytes);
      if (r != owner) {
        out_.ranks[r].sent += gather_[r].bytes;
        out_.ranks[owner].received += gather_[r].bytes;
        out_.ranks[owner].sent += back_[r].bytes;
        out_.ranks[r].received += back_[r].bytes;
      }
      gather_[r] = back_[r] = {};
    }
    touched_.insert(touched_.end(), peers_.begin(), peers_.end());
    touched_.push_back(owner);
    peers_.clear();
  }

  void add(size_t rank, Buffer buffer, int64_t bytes) {
    buffers_[rank][buffer] += round_up(bytes, kMessageAlignment);
  }

  void add_memory() {
    const PlanOptions& options = plan_.problem().options;
    const bool staged = options.commit == CommitMode::kAtomic;
    std::vector<int64_t> state_of(static_cast<size_t>(plan_.holders().layouts()), 0);
    std::vector<const Layout*> layout(state_of.size(), nullptr);
    for (size_t p = 0; p < plan_.problem().params.size(); ++p) {
      const ParamSpec& spec = plan_.problem().params[p];
      const auto l = static_cast<size_t>(plan_.holders().layout_of(static_cast<int32_t>(p)));
      layout[l] = &spec.layout;
      state_of[l] += state_bytes_per_element(spec.role);
    }
    for (size_t r = 0; r < ranks(); ++r) {
      MemoryPlan& memory = out_.ranks[r].memory;
      Buffers& most = largest_[r];
      if (staged) most[kReturnReceive] = 0;
      if (!staged) memory.staged_bytes = 0;
      const int64_t in_flight = std::min(options.window, out_.ranks[r].slots);
      for (const int64_t bytes : most) memory.message_bytes += in_flight * bytes;
      for (size_t l = 0; l < layout.size(); ++l)
        memory.state_bytes += state_of[l] * layout[l]->local_numel(static_cast<int>(r));
    }
  }

  const Plan& plan_;
  BlockTable blocks_;
  std::vector<std::vector<int64_t>> sizes_;  // [kind][shard slot]
  std::vector<Buffers> buffers_, largest_;   // of each rank: in this slot, in any slot
  std::vector<Message> gather_, back_;       // of each peer, with the owner at hand
  std::vector<size_t> peers_, touched_;      // ranks met for this owner, in this slot
  Traffic out_;
};

}  // namespace

Traffic measure_traffic(const Plan& plan) { return Measurement(plan).take(); }

}  // namespace muonrt
