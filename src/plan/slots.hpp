#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>

#include "base/error.hpp"
#include "plan/copy_list.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Numbers distinct keys by their order of appearance.
template <class Key>
class Numbering {
 public:
  int32_t of(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int32_t>(numbers_.size())).first->second;
  }

 private:
  std::map<Key, int32_t> numbers_;
};

/// Cost of a matrix, exact in 64 bits, so that sums do not depend on their order.
inline int64_t cost_of(const Matrix& m, const ParamSpec& spec) {
  MUONRT_REQUIRE(m.cost < 0x1p62, Status::kInvalidArgument, "param '", spec.name, "': ", m.rows,
                 " x ", m.cols, " takes ", m.cost,
                 " FLOPs (more than the planner can count); use AdamW for it");
  return std::llround(m.cost);
}

/// Buffers of a slot on one rank.
enum SlotBuffer : size_t {
  kGatherSend,
  kGatherReceive,
  kReturnSend,
  kReturnReceive,
  kSums,
  kDirectionBytes,
  kSlotBuffers
};

/// Their sizes, or the largest over several slots.
struct SlotBytes : std::array<int64_t, kSlotBuffers> {
  SlotBytes() : std::array<int64_t, kSlotBuffers>{} {}
  void cover(const SlotBytes& other) {
    for (size_t k = 0; k < kSlotBuffers; ++k) (*this)[k] = std::max((*this)[k], other[k]);
  }
  /// What the chunks in flight need at once; what is staged until the vote (atomic) not included.
  int64_t in_flight(const PlanOptions& options, int64_t slots) const {
    int64_t sum = 0;
    for (size_t k = 0; k < kSlotBuffers; ++k) {
      const bool staged = k == kReturnReceive || k == kSums;
      if (!staged || options.commit == CommitMode::kEager) sum += (*this)[k];
    }
    return sum * std::min<int64_t>(options.window, slots);
  }
};

inline SlotBytes bytes_of(const SlotPlan& slot) {
  SlotBytes out;
  out[kGatherSend] = slot.gather_send_bytes;
  out[kGatherReceive] = slot.gather_receive_bytes;
  out[kReturnSend] = slot.return_send_bytes;
  out[kReturnReceive] = slot.return_receive_bytes;
  out[kSums] = slot.sum_bytes;
  out[kDirectionBytes] = slot.direction_bytes;
  return out;
}

}  // namespace muonrt
