#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "host/host_stream.hpp"

namespace muonrt::host {

/// The queue behind one stream. An event is a place in it: `position` items enqueued so far; it is
/// complete once as many are finished. All fields are guarded by the hub's mutex.
struct StreamQueue {
  struct Item {
    Task task;
    std::shared_ptr<StreamQueue>
        after;  // not null: no task, wait until after->finished >= position
    uint64_t position = 0;
  };
  static constexpr uint64_t kNever = ~uint64_t{0};

  explicit StreamQueue(StreamKind stream_kind) : kind(stream_kind), ring(256) {}
  bool empty() const { return finished == enqueued; }
  bool full() const { return enqueued - finished == ring.size(); }
  Item& front() { return ring[finished & (ring.size() - 1)]; }
  bool runnable() { return !empty() && !running && (!front().after || front_wait_over()); }
  bool front_wait_over() { return front().after->finished >= front().position; }

  const StreamKind kind;
  std::vector<Item> ring;  // size is a power of two
  uint64_t finished = 0, enqueued = 0;
  uint64_t dropped_from = kNever;  // items from this one on were thrown away unrun
  bool running = false;            // the front task runs now
  bool failed = false;             // a task threw: later ones are skipped
  bool stopping = false;
  bool lost_thread = false;  // it was ended inside a task: nothing more will run
};

/// What the streams and events of one host device share: the order of work, and the first error.
/// One mutex and one condition variable: tasks are long beside the cost of a wake-up.
/// Threads: every function may be called from any thread.
class StreamScheduler : public std::enable_shared_from_this<StreamScheduler> {
 public:
  std::unique_ptr<Stream> create_stream(StreamKind kind);
  std::unique_ptr<Event> create_event();

  void record(Event& event, Stream& stream);
  void wait(Stream& stream, const Event& event);
  /// Runs the work of caller-driven streams while it waits.
  void synchronize(const Event& event, Deadline deadline);

  std::optional<Error> error() const;
  void clear_error();

  /// How often a queue had to grow so far (constant in steady state).
  int64_t growths() const;

 private:
  friend class QueueStream;
  using Lock = std::unique_lock<std::mutex>;

  void enqueue(StreamQueue& queue, StreamQueue::Item item);
  void grow(StreamQueue& queue);
  void wait_for_room(StreamQueue& queue, Lock& lock);
  void work(StreamQueue& queue);
  void finish_front(StreamQueue& queue, Lock& lock);
  void drop_pending(StreamQueue& queue);
  void retire(StreamQueue& queue);
  StreamQueue* runnable_on_caller();
  void latch(Error error);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<StreamQueue>> queues_;  // of the streams alive, in order of creation
  std::optional<Error> error_;
  int64_t growths_ = 0;
};

}  // namespace muonrt::host
