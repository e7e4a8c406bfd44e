#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "plan/copy_list.hpp"
#include "plan/problem.hpp"

namespace muonrt {

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

/// Their sizes in bytes.
struct SlotBytes : std::array<int64_t, kSlotBuffers> {
  SlotBytes() : std::array<int64_t, kSlotBuffers>{} {}
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

/// What a rank takes for its slots, in bytes: the pipeline takes it, the plan states it.
class RankBuffers {
 public:
  explicit RankBuffers(const PlanOptions& options)
      : atomic_(options.commit == CommitMode::kAtomic),
        window_(static_cast<size_t>(options.window)) {}

  void add(int32_t slot, const SlotBytes& bytes) {
    const size_t number = static_cast<size_t>(slot) % window_;
    if (in_flight_.size() <= number) in_flight_.resize(number + 1);
    SlotBytes& buffers = in_flight_[number];
    for (size_t k = 0; k < kSlotBuffers; ++k) {
      if (atomic_ && (k == kReturnReceive || k == kSums)) {
        staged_ += bytes[k];
      } else {
        buffers[k] = std::max(buffers[k], bytes[k]);
      }
    }
  }

  /// By slot number modulo the window, up to the last that is used: the largest of those slots,
  /// which use the buffers in turn.
  const std::vector<SlotBytes>& in_flight() const { return in_flight_; }
  int64_t message_bytes() const {
    int64_t sum = 0;
    for (const SlotBytes& buffers : in_flight_)
      for (const int64_t bytes : buffers) sum += bytes;
    return sum;
  }
  /// Of what each slot has by itself until the vote: updates and sums, where all commit together.
  int64_t staged_bytes() const { return staged_; }

 private:
  bool atomic_;
  size_t window_;
  std::vector<SlotBytes> in_flight_;
  int64_t staged_ = 0;
};

}  // namespace muonrt
