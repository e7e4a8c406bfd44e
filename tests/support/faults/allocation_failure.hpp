#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "support/thread_ranks.hpp"

/// Makes selected allocations fail: the operator new in failing_new.hpp fails if refuses() returns
/// true.
namespace support {

/// Selects, by its number, the allocation that fails. Counts the allocations of streams, of
/// connections, and of those threads of ranks that are marked as counted.
class AllocationFailure {
 public:
  /// @param nth  Number of the allocation that fails, counted from 0.
  void arm(int64_t nth) {
    fired_ = false;
    left_ = nth;
  }
  void disarm() {
    left_ = kNever;
    drought_ = false;
  }
  /// Makes all allocations of streams and connection threads fail until disarm() is called.
  void begin_drought() { drought_ = true; }
  bool fired() const { return fired_; }
  /// Marks the calling thread as a thread of a rank, and sets whether its allocations are counted.
  /// Threads without a mark belong to streams or connections.
  static void mark(bool counted) { of_thread_ = counted ? Thread::kCounted : Thread::kOther; }
  bool refuses() {
    if (drought_ && of_thread_ == Thread::kStream) return true;
    if (left_ == kNever || of_thread_ == Thread::kOther) return false;
    if (left_.fetch_sub(1) != 0) return false;
    fired_ = true;
    left_ = kNever;
    return true;
  }

 private:
  enum class Thread { kStream, kCounted, kOther };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
  std::atomic<int64_t> left_ = kNever;
  std::atomic<bool> fired_ = false, drought_ = false;
  static inline thread_local Thread of_thread_ = Thread::kStream;
};

inline constinit AllocationFailure refusal;

/// Runs `work(rank)` on `ranks` threads. On rank `faulty`, allocation number `nth` fails.
/// If `faulty` is -1 or `nth` is negative, no allocation fails.
/// @return Whether the rank reached this allocation.
template <class Work>
bool refused(int ranks, int faulty, int64_t nth, const Work& work) {
  refusal.disarm();
  AllocationFailure::mark(false);
  if (nth >= 0) refusal.arm(nth);
  transport_test::on_ranks(ranks, [&](int rank) {
    AllocationFailure::mark(rank == faulty);
    work(rank);
    AllocationFailure::mark(false);
  });
  const bool fired = nth >= 0 && refusal.fired();
  refusal.disarm();
  return fired;
}

}  // namespace support
