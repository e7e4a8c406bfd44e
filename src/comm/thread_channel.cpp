#include "comm/thread_channel.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/text.hpp"
#include "comm/transport.hpp"

namespace muonrt {

namespace {

bool concerns(int32_t filter, int32_t value) {
  return filter == ThreadFaults::kAny || filter == value;
}

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

struct ThreadChannel::Exchange {
  int32_t rank;
  const Operation& operation;
  std::span<const ReceiveFrom> receives;
  const CopyMessage* copy;
  Deadline deadline;
  ThreadScratch& scratch;
  int64_t missing = 0;  // number of receives that are not complete
};

ThreadChannel::ThreadChannel(int size, std::shared_ptr<ThreadGroupShared> shared)
    : shared_(std::move(shared)),
      number_(shared_->channels.fetch_add(1)),
      ranks_(static_cast<size_t>(size)) {
  for (Rank& rank : ranks_) rank.inbox.reserve(ranks_.size());
}

void ThreadChannel::take_rank(int rank) {
  const Lock lock(mutex_);
  Rank& mine = ranks_[static_cast<size_t>(rank)];
  MUONRT_REQUIRE(!mine.taken, Status::kInvalidArgument, "thread group: rank ", rank,
                 " was taken before; create one communicator for each rank");
  mine.taken = true;
}

void ThreadChannel::leave(int rank) noexcept {
  if (shared_->dead[static_cast<size_t>(rank)]) return;
  const Lock lock(mutex_);
  ranks_[static_cast<size_t>(rank)].left = true;
  for (Rank& r : ranks_) r.wake.notify_all();
}

std::optional<Error> ThreadChannel::published_error() {
  const Lock lock(mutex_);
  return error_;
}

void ThreadChannel::publish(int rank, const Error& error) noexcept {
  if (shared_->dead[static_cast<size_t>(rank)]) return;
  const Lock lock(mutex_);
  if (!error_) error_ = error.reported_by_rank(rank);
  for (Rank& r : ranks_) r.wake.notify_all();
}

void ThreadChannel::throw_if_killed(int rank, const Operation& operation) {
  std::atomic<bool>& dead = shared_->dead[static_cast<size_t>(rank)];
  for (const ThreadFaults::Kill& kill : shared_->faults.kills) {
    if (kill.rank != rank || kill.kind != operation.kind || kill.ordinal != operation.ordinal ||
        !concerns(kill.channel, number_))
      continue;
    if (kill.forever) dead = true;
    MUONRT_REQUIRE(kill.forever, Status::kComm, name_of(operation.kind), " #", operation.sequence,
                   " on rank ", rank, " (thread): a planted fault makes the operation fail");
  }
  MUONRT_REQUIRE(!dead, Status::kComm, name_of(operation.kind), " #", operation.sequence,
                 " on rank ", rank, " (thread): the rank was killed by a planted fault");
}

void ThreadChannel::offer(Exchange& x, std::span<const SendTo> sends) {
  const ThreadFaults& faults = shared_->faults;
  const auto now = Deadline::Clock::now();
  size_t used = 0;
  for (const SendTo& send : sends) {
    if (send.peer == x.rank) continue;
    const auto dropped = [&](const ThreadFaults::Drop& d) {
      return d.from == x.rank && d.kind == x.operation.kind && d.ordinal == x.operation.ordinal &&
             concerns(d.to, send.peer) && concerns(d.channel, number_);
    };
    if (std::any_of(faults.drops.begin(), faults.drops.end(), dropped)) continue;
    ThreadOffer& o = x.scratch.offers[used++];
    o = {x.rank, send.peer, send.data, send.bytes, x.operation, now, ThreadOffer::State::kTaken};
    if (faults.max_delay_us > 0) {
      uint64_t hash = mix(faults.seed + static_cast<uint64_t>(number_));
      hash = mix(hash + static_cast<uint64_t>(o.from));
      hash = mix(hash + static_cast<uint64_t>(o.to));
      hash = mix(hash + static_cast<uint64_t>(o.operation.sequence));
      o.due += std::chrono::microseconds(hash % static_cast<uint64_t>(faults.max_delay_us + 1));
    }
    Rank& peer = ranks_[static_cast<size_t>(send.peer)];
    peer.inbox.push_back(&o);
    o.state = ThreadOffer::State::kOffered;
    peer.wake.notify_all();
    ++ranks_[static_cast<size_t>(x.rank)].unfinished;
  }
}

ThreadOffer* ThreadChannel::find(const Exchange& x, int32_t from) {
  for (ThreadOffer* o : ranks_[static_cast<size_t>(x.rank)].inbox) {
    if (o->from == from) return o;
  }
  return nullptr;
}

void ThreadChannel::copy(Exchange& x, ThreadOffer& offer, const ReceiveFrom& receive, Lock& lock) {
  Rank& sender = ranks_[static_cast<size_t>(offer.from)];
  std::erase(ranks_[static_cast<size_t>(x.rank)].inbox, &offer);
  offer.state = ThreadOffer::State::kCopying;
  lock.unlock();
  std::exception_ptr failed;
  if (!x.copy) {
    std::memcpy(receive.data, offer.data, static_cast<size_t>(receive.bytes));
  } else {
    try {
      (*x.copy)(receive.data, offer.data, receive.bytes);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  lock.lock();
  offer.state = ThreadOffer::State::kTaken;
  if (--sender.unfinished == 0) sender.wake.notify_all();
  x.scratch.receive_index[static_cast<size_t>(receive.peer)] = -1;
  --x.missing;
  if (failed) std::rethrow_exception(failed);
}

/// Delivers one message that has arrived, and releases the lock during the copy and the callbacks.
/// Returns false if no message has arrived.
bool ThreadChannel::deliver_one(Exchange& x, Lock& lock) {
  const auto now = Deadline::Clock::now();
  const auto& inbox = ranks_[static_cast<size_t>(x.rank)].inbox;
  const auto ready = [&](const ThreadOffer* o) {
    return o->due <= now && x.scratch.receive_index[static_cast<size_t>(o->from)] >= 0;
  };
  const auto found = std::find_if(inbox.begin(), inbox.end(), ready);
  if (found == inbox.end()) return false;
  ThreadOffer* o = *found;
  const auto index = x.scratch.receive_index[static_cast<size_t>(o->from)];
  const ReceiveFrom& receive = x.receives[static_cast<size_t>(index)];
  MUONRT_REQUIRE(o->operation.kind == x.operation.kind, Status::kMismatch, "rank ", x.rank,
                 " is in ", name_of(x.operation.kind), " #", x.operation.sequence, ", but rank ",
                 o->from, " is in ", name_of(o->operation.kind), " #", o->operation.sequence,
                 "; run the same sequence of operations on all ranks");
  MUONRT_REQUIRE(o->bytes == receive.bytes, Status::kMismatch, name_of(x.operation.kind), " #",
                 x.operation.sequence, " on rank ", x.rank, " (thread): rank ", o->from, " sent ",
                 o->bytes, " bytes, but this rank expected ", receive.bytes,
                 "; pass the same size on both ranks");
  const ThreadMessage message{number_, o->operation.kind,    o->from,
                              x.rank,  o->operation.ordinal, x.operation.ordinal,
                              o->bytes};
  if (shared_->faults.before_delivery) {
    lock.unlock();
    shared_->faults.before_delivery(message);
    lock.lock();
    o = find(x, message.from);  // the sender may have withdrawn the message
    if (!o) return true;
  }
  copy(x, *o, receive, lock);
  if (shared_->faults.after_delivery) {
    lock.unlock();
    shared_->faults.after_delivery(message);
    lock.lock();
  }
  return true;
}

/// Withdraws this rank's messages, and waits until no peer is reading this rank's buffers.
void ThreadChannel::withdraw(Exchange& x, Lock& lock) noexcept {
  Rank& mine = ranks_[static_cast<size_t>(x.rank)];
  for (ThreadOffer& o : x.scratch.offers) {
    if (o.state != ThreadOffer::State::kOffered) continue;
    std::erase(ranks_[static_cast<size_t>(o.to)].inbox, &o);
    o.state = ThreadOffer::State::kTaken;
    --mine.unfinished;
  }
  mine.wake.wait(lock, [&] { return mine.unfinished == 0; });
}

void ThreadChannel::throw_timeout(const Exchange& x) const {
  try {
    throw Error(Status::kTimeout, timeout_text(x));
  } catch (const std::bad_alloc&) {
    throw Error(Status::kTimeout);
  }
}

std::string ThreadChannel::timeout_text(const Exchange& x) const {
  std::vector<int32_t> silent, not_taking, busy;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (x.scratch.receive_index[static_cast<size_t>(peer)] >= 0) silent.push_back(peer);
  }
  for (const ThreadOffer& o : x.scratch.offers) {
    if (o.state == ThreadOffer::State::kOffered) not_taking.push_back(o.to);
    if (o.state == ThreadOffer::State::kCopying) busy.push_back(o.to);
  }
  std::string who;
  if (!silent.empty()) who = cat("received no message from ", name_ranks(silent));
  if (!not_taking.empty()) {
    who += cat(who.empty() ? "" : ", and ", name_ranks(not_taking),
               " did not receive a message of this rank");
  }
  if (!busy.empty()) {
    who += cat(who.empty() ? "" : ", and ", name_ranks(busy),
               " did not finish copying a message of this rank");
  }
  return cat(name_of(x.operation.kind), " #", x.operation.sequence, " on rank ", x.rank,
             " (thread): ", who,
             " before the timeout; check whether these ranks are still running, or raise the "
             "timeout (timeout_ms of the optimizer, or muonrt_comm_set_timeout())");
}

void ThreadChannel::throw_if_peer_left(const Exchange& x) const {
  const auto left = [&](int32_t peer) { return ranks_[static_cast<size_t>(peer)].left; };
  const auto require = [&](int32_t peer, const char* what) {
    MUONRT_REQUIRE(!left(peer), Status::kComm, name_of(x.operation.kind), " #",
                   x.operation.sequence, " on rank ", x.rank, " (thread): rank ", peer,
                   " destroyed its communicator", what,
                   "; see the output of that rank for the cause");
  };
  for (const ReceiveFrom& r : x.receives) {
    if (x.scratch.receive_index[static_cast<size_t>(r.peer)] >= 0)
      require(r.peer, " and sends no more messages");
  }
  for (const ThreadOffer& o : x.scratch.offers) {
    if (o.state == ThreadOffer::State::kOffered) require(o.to, " and receives no more messages");
  }
}

void ThreadChannel::wait(Exchange& x, Lock& lock) {
  if (error_) throw *error_;
  throw_if_peer_left(x);
  if (x.deadline.passed()) throw_timeout(x);
  Rank& mine = ranks_[static_cast<size_t>(x.rank)];
  auto until = x.deadline.at();
  for (const ThreadOffer* o : mine.inbox) {
    if (x.scratch.receive_index[static_cast<size_t>(o->from)] >= 0) until = std::min(until, o->due);
  }
  mine.wake.wait_until(lock, until);
}

void ThreadChannel::exchange(int rank, const Operation& operation, std::span<const SendTo> sends,
                             std::span<const ReceiveFrom> receives, const CopyMessage* copy,
                             Deadline deadline, ThreadScratch& scratch) {
  for (ThreadOffer& o : scratch.offers) o.state = ThreadOffer::State::kTaken;
  std::fill(scratch.receive_index.begin(), scratch.receive_index.end(), -1);
  Exchange x{rank, operation, receives, copy, deadline, scratch};
  for (size_t i = 0; i < receives.size(); ++i) {
    if (receives[i].peer == rank) continue;
    scratch.receive_index[static_cast<size_t>(receives[i].peer)] = static_cast<int32_t>(i);
    ++x.missing;
  }
  Lock lock(mutex_);
  if (error_) throw *error_;
  try {
    offer(x, sends);
    while (x.missing > 0 || ranks_[static_cast<size_t>(rank)].unfinished > 0) {
      if (!deliver_one(x, lock)) wait(x, lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    withdraw(x, lock);
    throw;
  }
}

std::shared_ptr<ThreadChannel> ThreadChannel::child(int64_t ordinal) {
  const Lock lock(mutex_);
  Child& child = children_[ordinal];
  if (!child.channel) child.channel = std::make_shared<ThreadChannel>(size(), shared_);
  std::shared_ptr<ThreadChannel> out = child.channel;
  if (++child.handed_out == size()) children_.erase(ordinal);
  return out;
}

}  // namespace muonrt
