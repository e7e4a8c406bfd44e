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

/// What a group and all its duplicates share.
struct ThreadGroupShared {
  ThreadGroupShared(int size, ThreadFaults f)
      : faults(std::move(f)), dead(static_cast<size_t>(size)) {}
  const ThreadFaults faults;
  std::vector<std::atomic<bool>> dead;  // by rank: killed forever
  std::atomic<int32_t> channels = 0;
};

/// A message on offer: lies with its sender, linked into the receiver's inbox.
struct ThreadOffer {
  enum class State { kOffered, kCopying, kTaken };
  int32_t from = 0, to = 0;
  const void* data = nullptr;
  int64_t bytes = 0;
  Operation operation;  // the sender's
  Deadline::Clock::time_point due;
  State state = State::kTaken;
};

/// What one rank keeps between its operations so that none of them allocates.
struct ThreadScratch {
  explicit ThreadScratch(int size) : offers(static_cast<size_t>(size)), wanted(offers.size(), -1) {
    sends.reserve(offers.size());
    receives.reserve(offers.size());
  }
  std::vector<ThreadOffer> offers;
  std::vector<int32_t> wanted;  // by peer: index into the receives, or -1
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
};

/// The state that n ranks share; one mutex guards it all. Threads: each rank's functions from one
/// thread at a time, `publish` from any.
class ThreadChannel {
 public:
  ThreadChannel(int size, std::shared_ptr<ThreadGroupShared> family);

  int size() const { return static_cast<int>(ranks_.size()); }
  int32_t number() const { return number_; }
  ThreadGroupShared& family() { return *family_; }

  /// Errors: INVALID_STATE if the rank was taken before.
  void take_rank(int rank);
  /// Peers that wait for this rank's messages end with COMM.
  void leave(int rank) noexcept;
  void publish(int rank, const Error& error) noexcept;
  std::optional<Error> published_error();

  /// Throws what Kill says about this operation, or about a rank that is dead already.
  void throw_if_killed(int rank, const Operation& operation);

  /// Offers the sends, takes the receives, returns when both are done. Messages to `rank` itself
  /// are passed over. Errors: TIMEOUT, MISMATCH, COMM, what was published, what `copy` throws.
  /// A copy of this rank's message that is under way is waited for, whatever has gone wrong.
  /// @param copy  moves what the rank receives; null: memcpy.
  void exchange(int rank, const Operation& operation, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives, const CopyMessage* copy, Deadline deadline,
                ThreadScratch& scratch);

  /// The channel that all ranks get from their `ordinal`-th duplication of this one.
  std::shared_ptr<ThreadChannel> child(int64_t ordinal);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Rank {
    std::condition_variable wake;
    std::vector<ThreadOffer*> inbox;
    int64_t unfinished = 0;  // offers that nobody has taken yet
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

  const std::shared_ptr<ThreadGroupShared> family_;
  const int32_t number_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::optional<Error> error_;
  std::map<int64_t, Child> children_;
};

}  // namespace muonrt
