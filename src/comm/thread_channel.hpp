#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/comm.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "comm/thread_faults.hpp"

namespace muonrt {

/// The data that a group and all its duplicates share.
struct ThreadGroupShared {
  ThreadGroupShared(int size, ThreadFaults f)
      : faults(std::move(f)), dead(static_cast<size_t>(size)) {}
  const ThreadFaults faults;
  std::vector<std::atomic<bool>> dead;  // indexed by rank; see ThreadFaults::Kill
  std::atomic<int32_t> channels = 0;
};

/// A message that its receiver can copy. The sender stores it, and the inbox of the receiver points
/// to it.
struct ThreadOffer {
  enum class State { kOffered, kCopying, kTaken };
  int32_t from = 0, to = 0;
  const void* data = nullptr;
  int64_t bytes = 0;
  Operation operation;  // the operation of the sender
  Deadline::Clock::time_point due;
  State state = State::kTaken;
};

/// Memory that a rank keeps from one operation to the next, so that operations do not allocate.
struct ThreadScratch {
  explicit ThreadScratch(int size)
      : offers(static_cast<size_t>(size)), receive_index(offers.size(), -1) {
    sends.reserve(offers.size());
    receives.reserve(offers.size());
  }
  std::vector<ThreadOffer> offers;
  std::vector<int32_t> receive_index;  // for each peer, the index of the pending receive, or -1
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
};

/// The state that all ranks of a communicator share, protected by one mutex. Threads: the functions
/// of a rank are called from one thread at a time; publish() may be called from any thread.
class ThreadChannel {
 public:
  ThreadChannel(int size, std::shared_ptr<ThreadGroupShared> shared);

  int size() const { return static_cast<int>(ranks_.size()); }
  int32_t number() const { return number_; }
  ThreadGroupShared& shared() { return *shared_; }

  /// Assigns the rank to a transport. Errors: INVALID_ARGUMENT if the rank was already assigned.
  void take_rank(int rank);
  /// Call this function when the rank destroys its transport. An operation of a peer that waits for
  /// a message to or from this rank then throws COMM.
  void leave(int rank) noexcept;
  void publish(int rank, const Error& error) noexcept;
  std::optional<Error> published_error();

  /// Throws the error that ThreadFaults::Kill defines for this operation, or COMM if the rank is
  /// dead.
  void throw_if_killed(int rank, const Operation& operation);

  /// Offers the sends to the peers, copies the receives, and returns when the peers have copied all
  /// sends. Skips the message from `rank` to itself. Even after an error, waits until no peer is
  /// copying a message of this rank.
  /// Errors: TIMEOUT, MISMATCH, COMM, a published error, or an error of `copy`.
  /// @param copy  Copies each message that the rank receives; null means memcpy.
  void exchange(int rank, const Operation& operation, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives, const CopyMessage* copy, Deadline deadline,
                ThreadScratch& scratch);

  /// Returns the channel for duplicate number `ordinal` of this channel. All ranks get the same
  /// object.
  std::shared_ptr<ThreadChannel> child(int64_t ordinal);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Rank {
    std::condition_variable wake;
    std::vector<ThreadOffer*> inbox;
    int64_t unfinished = 0;  // number of offers that have not been copied yet
    bool taken = false, left = false;
  };
  struct Child {
    std::shared_ptr<ThreadChannel> channel;
    int handed_out = 0;
  };
  struct Exchange;  // one rank's part of one exchange

  void offer(Exchange& x, std::span<const SendTo> sends);
  bool deliver_one(Exchange& x, Lock& lock);
  void copy(Exchange& x, ThreadOffer& offer, const ReceiveFrom& receive, Lock& lock);
  void withdraw(Exchange& x, Lock& lock) noexcept;
  void wait(Exchange& x, Lock& lock);
  ThreadOffer* find(const Exchange& x, int32_t from);
  [[noreturn]] void throw_timeout(const Exchange& x) const;
  std::string timeout_text(const Exchange& x) const;
  void throw_if_peer_left(const Exchange& x) const;

  const std::shared_ptr<ThreadGroupShared> shared_;
  const int32_t number_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::optional<Error> error_;
  std::map<int64_t, Child> children_;
};

}  // namespace muonrt
