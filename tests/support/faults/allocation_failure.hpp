#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "support/thread_ranks.hpp"

/// Allocations that fail: operator new (failing_new.hpp) asks whether the next one does.
namespace support {

/// Selects the allocation that fails, among those of the threads of one rank and of all streams.
class AllocationFailure {
 public:
  /// @param nth  number of the allocation, from 0.
  void arm(int64_t nth) {
    fired_ = false;
    left_ = nth;
  }
  void disarm() {
    left_ = kNever;
    drought_ = false;
  }
  /// Until `disarm` all allocations of streams and of connection threads fail.
  void begin_drought() { drought_ = true; }
  bool fired() const { return fired_; }
  /// Marks this thread as one of a rank, whose allocations count or do not. Other threads are
  /// streams.
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

/// Runs `work(rank)` on one thread for each of `ranks`; the nth allocation of rank `faulty` fails.
/// Rank -1 or a negative `nth`: none fails.
/// @return  whether that allocation was reached.
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
