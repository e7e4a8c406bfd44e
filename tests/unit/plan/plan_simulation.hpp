#pragma once

// Carries bytes through the copy lists of a plan, rank by rank, and says what went wrong. Values
// are addressed by seed, parameter, and place in the parameter, so every place knows its own.

#include <cstring>
#include <optional>

#include "base/text.hpp"
#include "unit/plan/plan_cases.hpp"

namespace plan_simulation {

using muonrt::cat;
using muonrt::MatrixPiece;
using muonrt::Piece;
using muonrt::Plan;
using muonrt::Region;
using muonrt::SlotPlan;
using Bytes = std::vector<unsigned char>;

/// First complaint; empty if there is none.
using Complaint = std::string;

inline uint64_t value_at(uint64_t seed, size_t param, int64_t element) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + param * 0xbf58476d1ce4e5b9ull +
               static_cast<uint64_t>(element) * 0x94d049bb133111ebull;
  x ^= x >> 29;
  x *= 0xff51afd7ed558ccdull;
  return x ^ (x >> 32);
}

/// Regions ascend by peer, begin at multiples of 64 and end inside the buffer.
inline Complaint check_regions(const std::vector<Region>& regions, int64_t bytes, bool may_share,
                               const char* what) {
  if (bytes % 64 != 0) return cat(what, ": buffer of ", bytes, " bytes");
  std::map<int64_t, int64_t> taken;
  for (size_t i = 0; i < regions.size(); ++i) {
    const Region& r = regions[i];
    if (i > 0 && r.peer <= regions[i - 1].peer) return cat(what, ": peers do not ascend");
    if (r.offset % 64 != 0) return cat(what, ": offset ", r.offset);
    if (r.bytes <= 0 || r.offset + r.bytes > bytes) return cat(what, ": region out of bounds");
    const auto [at, is_new] = taken.try_emplace(r.offset, r.bytes);
    if (!is_new && (!may_share || at->second != r.bytes)) return cat(what, ": regions overlap");
  }
  int64_t end = 0;
  for (const auto& [offset, size] : taken) {
    if (offset < end) return cat(what, ": regions overlap");
    end = offset + size;
  }
  return {};
}

/// One slot of all ranks: buffers as the pipeline would hold them.
template <class Element>
class SlotRun {
 public:
  SlotRun(const plan_case::Case& c, const Plan& plan, int slot,
          const std::vector<std::vector<SlotPlan>>& slots)
      : case_(c), plan_(plan), plans_(slots.size()) {
    for (size_t r = 0; r < slots.size(); ++r) {
      for (const SlotPlan& s : slots[r]) {
        if (s.slot == slot) plans_[r] = &s;
      }
    }
  }

  Complaint run() {
    Complaint c = check_shapes();
    if (c.empty()) c = gather();
    if (c.empty()) c = give_back();
    return c;
  }

  /// (param, element) -> times it was written on each rank by the return.
  std::vector<std::map<std::pair<int, int64_t>, int>> returned;

 private:
  static Element element(uint64_t value) { return static_cast<Element>(value); }

  Complaint check_shapes_of(const SlotPlan& s) const {
    if (!s.takes_part()) return "a slot without a message";
    for (const Complaint& c :
         {check_regions(s.gather_sends, s.gather_send_bytes, false, "gather sends"),
          check_regions(s.gather_receives, s.gather_receive_bytes, false, "gather receives"),
          check_regions(s.return_sends, s.return_send_bytes, true, "return sends"),
          check_regions(s.return_receives, s.return_receive_bytes, false, "return receives"),
          check_regions(s.relay_sends, s.return_receive_bytes, true, "relay sends"),
          check_regions(s.relay_receives, s.return_receive_bytes, false, "relay receives")}) {
      if (!c.empty()) return c;
    }
    for (const Region& relayed : s.relay_receives) {
      for (const auto* list : {&s.return_receives, &s.relay_sends}) {
        for (const Region& r : *list) {
          if (relayed.offset < r.offset + r.bytes && r.offset < relayed.offset + relayed.bytes)
            return "a relayed message overlaps what owners send";
        }
      }
    }
    if (s.return_matrix_pieces.size() < s.gather_matrix_pieces.size())
      return "return list is too short";
    for (size_t i = 0; i < s.gather_matrix_pieces.size(); ++i) {
      const MatrixPiece &a = s.gather_matrix_pieces[i], &b = s.return_matrix_pieces[i];
      if (a.matrix != b.matrix || a.row != b.row || a.col != b.col || a.rows != b.rows ||
          a.cols != b.cols || a.packed_offset != b.packed_offset)
        return "the return does not begin as the gather";
    }
    return {};
  }

  Complaint check_shapes() const {
    for (const SlotPlan* s : plans_) {
      if (s == nullptr) continue;
      if (Complaint c = check_shapes_of(*s); !c.empty()) return c;
    }
    return {};
  }

  size_t at(int64_t offset) const { return static_cast<size_t>(offset) * sizeof(Element); }

  /// Moves messages; both sides must name each other with the same number of bytes.
  Complaint exchange(std::vector<Bytes>& sent, std::vector<Bytes>& received,
                     std::vector<Region> SlotPlan::*sends, std::vector<Region> SlotPlan::*receives,
                     int64_t SlotPlan::*receive_bytes) {
    received.assign(plans_.size(), {});
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (plans_[r] != nullptr)
        received[r].assign(static_cast<size_t>(plans_[r]->*receive_bytes), 0xee);
    }
    return move(sent, received, sends, receives);
  }

  Complaint move(const std::vector<Bytes>& sent, std::vector<Bytes>& received,
                 std::vector<Region> SlotPlan::*sends, std::vector<Region> SlotPlan::*receives) {
    std::map<std::pair<int, int>, Region> expected;  // (from, to)
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (plans_[r] == nullptr) continue;
      for (const Region& region : plans_[r]->*receives)
        expected[{region.peer, static_cast<int>(r)}] = region;
    }
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (plans_[r] == nullptr) continue;
      for (const Region& from : plans_[r]->*sends) {
        const auto to = expected.find({static_cast<int>(r), from.peer});
        if (to == expected.end()) return cat("rank ", from.peer, " does not expect rank ", r);
        if (to->second.bytes != from.bytes)
          return cat("rank ", r, " sends ", from.bytes, " bytes, rank ", from.peer, " expects ",
                     to->second.bytes);
        std::memcpy(received[static_cast<size_t>(from.peer)].data() + to->second.offset,
                    sent[r].data() + from.offset, static_cast<size_t>(from.bytes));
        expected.erase(to);
      }
    }
    return expected.empty() ? Complaint{} : cat("a message is expected that nobody sends");
  }

  /// Calls use(local offset, row-major element number within the parameter, packed offset).
  template <class Use>
  void for_each(const Piece& p, const Use& use) const {
    const muonrt::Matrix& m = plan_.matrices()[static_cast<size_t>(p.matrix)];
    for (int64_t i = 0; i < p.rows; ++i) {
      for (int64_t j = 0; j < p.cols; ++j)
        use(p.local_offset + i * p.local_ld + j,
            m.index * m.rows * m.cols + (p.global_row + i) * m.cols + p.global_col + j,
            p.packed_offset + i * p.cols + j);
    }
  }

  Complaint gather() {
    std::vector<Bytes> sent(plans_.size()), received;
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (plans_[r] == nullptr) continue;
      sent[r].assign(static_cast<size_t>(plans_[r]->gather_send_bytes), 0xaa);
      for (const Piece& p : plans_[r]->gather_pieces) {
        const auto& held = case_.held[static_cast<size_t>(p.param)].at(static_cast<int>(r));
        Complaint bad;
        for_each(p, [&](int64_t local, int64_t number, int64_t packed) {
          if (local < 0 || local >= std::ssize(held)) {
            bad = cat("rank ", r, " reads outside its shard");
            return;
          }
          // what lies there, which must be what the piece says it is
          const int64_t lies = held[static_cast<size_t>(local)];
          if (lies != number) bad = cat("rank ", r, " sends ", lies, " as ", number);
          const Element v = element(value_at(1, static_cast<size_t>(p.param), lies));
          std::memcpy(sent[r].data() + at(packed), &v, sizeof v);
        });
        if (!bad.empty()) return bad;
      }
    }
    Complaint c = exchange(sent, received, &SlotPlan::gather_sends, &SlotPlan::gather_receives,
                           &SlotPlan::gather_receive_bytes);
    for (size_t r = 0; r < plans_.size() && c.empty(); ++r) {
      if (plans_[r] != nullptr) c = check_owned(*plans_[r], received[r]);
    }
    return c;
  }

  /// Every element of every matrix arrived exactly once, and is the right one.
  Complaint check_owned(const SlotPlan& s, const Bytes& received) const {
    std::vector<std::vector<int>> filled;
    for (const muonrt::Owned& o : s.owned)
      filled.emplace_back(static_cast<size_t>(o.rows * o.cols), 0);
    for (const MatrixPiece& p : s.gather_matrix_pieces) {
      const muonrt::Owned& o = s.owned[static_cast<size_t>(p.matrix)];
      const muonrt::Matrix& m = plan_.matrices()[static_cast<size_t>(o.matrix)];
      for (int64_t i = 0; i < p.rows; ++i) {
        for (int64_t j = 0; j < p.cols; ++j) {
          const int64_t place = (p.row + i) * o.cols + p.col + j;
          Element v;
          std::memcpy(&v, received.data() + at(p.packed_offset + i * p.cols + j), sizeof v);
          const int64_t number = m.index * m.rows * m.cols + place;
          if (v != element(value_at(1, static_cast<size_t>(m.param), number)))
            return cat("matrix ", o.matrix, ": element ", place, " arrived wrong");
          ++filled[static_cast<size_t>(p.matrix)][static_cast<size_t>(place)];
        }
      }
    }
    for (size_t i = 0; i < filled.size(); ++i) {
      for (const int times : filled[i]) {
        if (times != 1)
          return cat("matrix ", s.owned[i].matrix, ": an element arrived ", times, " times");
      }
    }
    return {};
  }

  Complaint give_back() {
    std::vector<Bytes> sent(plans_.size()), received;
    for (size_t r = 0; r < plans_.size(); ++r) {
      if (plans_[r] == nullptr) continue;
      const SlotPlan& s = *plans_[r];
      sent[r].assign(static_cast<size_t>(s.return_send_bytes), 0xaa);
      for (const MatrixPiece& p : s.return_matrix_pieces) {
        const muonrt::Owned& o = s.owned[static_cast<size_t>(p.matrix)];
        const muonrt::Matrix& m = plan_.matrices()[static_cast<size_t>(o.matrix)];
        for (int64_t i = 0; i < p.rows * p.cols; ++i) {
          const int64_t number =
              m.index * m.rows * m.cols + (p.row + i / p.cols) * o.cols + p.col + i % p.cols;
          const Element v = element(value_at(2, static_cast<size_t>(m.param), number));
          std::memcpy(sent[r].data() + at(p.packed_offset + i), &v, sizeof v);
        }
      }
    }
    Complaint c = exchange(sent, received, &SlotPlan::return_sends, &SlotPlan::return_receives,
                           &SlotPlan::return_receive_bytes);
    if (c.empty()) {
      const std::vector<Bytes> arrived = received;
      c = move(arrived, received, &SlotPlan::relay_sends, &SlotPlan::relay_receives);
    }
    returned.assign(plans_.size(), {});
    for (size_t r = 0; r < plans_.size() && c.empty(); ++r) {
      if (plans_[r] == nullptr) continue;
      for (const Piece& p : plans_[r]->return_pieces) {
        const auto& held = case_.held[static_cast<size_t>(p.param)].at(static_cast<int>(r));
        for_each(p, [&](int64_t local, int64_t number, int64_t packed) {
          if (local < 0 || local >= std::ssize(held)) {
            c = cat("rank ", r, " writes outside its shard");
            return;
          }
          Element v;
          std::memcpy(&v, received[r].data() + at(packed), sizeof v);
          const int64_t lies = held[static_cast<size_t>(local)];
          if (lies != number || v != element(value_at(2, static_cast<size_t>(p.param), lies)))
            c = cat("rank ", r, ", param ", p.param, ": element ", lies, " came back wrong");
          ++returned[r][{p.param, lies}];
        });
      }
    }
    return c;
  }

  const plan_case::Case& case_;
  const Plan& plan_;
  std::vector<const SlotPlan*> plans_;  // of each rank; null: takes no part
};

/// A whole step: every slot, after which every rank has every element of its shards back once.
template <class Element>
Complaint run_step(const plan_case::Case& c, const Plan& plan) {
  const auto slots = plan_case::all_slots(plan);
  std::vector<std::map<std::pair<int, int64_t>, int>> returned(slots.size());
  for (int s = 0; s < static_cast<int>(plan.slots().size()); ++s) {
    SlotRun<Element> run(c, plan, s, slots);
    if (Complaint bad = run.run(); !bad.empty()) return cat("slot ", s, ": ", bad);
    for (size_t r = 0; r < slots.size(); ++r) {
      for (const auto& [place, times] : run.returned[r]) returned[r][place] += times;
    }
  }
  for (size_t p = 0; p < c.held.size(); ++p) {
    if (c.problem.params[p].role != muonrt::Role::kMuon) continue;
    for (const auto& [rank, held] : c.held[p]) {
      for (const int64_t e : held) {
        const auto& there = returned[static_cast<size_t>(rank)];
        const auto at = there.find({static_cast<int>(p), e});
        if (at == there.end() || at->second != 1)
          return cat("rank ", rank, ", param ", p, ": element ", e, " did not come back once");
      }
    }
  }
  return {};
}

inline Complaint run_step(const plan_case::Case& c, const Plan& plan) {
  return size_of(plan.problem().options.transport) == 2 ? run_step<uint16_t>(c, plan)
                                                        : run_step<uint32_t>(c, plan);
}

}  // namespace plan_simulation
