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

/// The queue of one stream. The `position` of an event is the number of items that were enqueued
/// before it; the event is complete when this number of items is finished. The scheduler's mutex
/// guards all fields.
struct StreamQueue {
  struct Item {
    Task task;
    std::shared_ptr<StreamQueue>
        after;  // if not null, the item has no task; it waits until after->finished >= position
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
  std::vector<Item> ring;  // the size is a power of two
  uint64_t finished = 0, enqueued = 0;
  uint64_t dropped_from = kNever;  // this item and all later items were dropped
  bool running = false;            // the front task is running
  bool failed = false;             // a task threw, so later tasks are skipped
  bool stopping = false;
  bool lost_thread = false;       // the thread ended inside a task, so no later task will run
  std::condition_variable ready;  // wakes the queue's thread
};

/// Orders the work of all streams and events of one host device, and keeps the first error. All
/// functions use one mutex. A finished item wakes only the threads that can continue: threads of
/// streams whose next item waits for it, and threads that synchronize with it.
/// Threads: every function may be called from any thread.
class StreamScheduler : public std::enable_shared_from_this<StreamScheduler> {
 public:
  std::unique_ptr<Stream> create_stream(StreamKind kind);
  std::unique_ptr<Event> create_event();

  void record(Event& event, Stream& stream);
  void wait(Stream& stream, const Event& event);
  /// Runs the work of kCommOnCaller streams while it waits.
  void synchronize(const Event& event, Deadline deadline);

  std::optional<Error> error() const;
  void clear_error();

  /// Returns how often the queues have grown so far. This number does not grow after the first
  /// steps.
  int64_t growths() const;

 private:
  friend class QueueStream;
  using Lock = std::unique_lock<std::mutex>;

  /// A thread that waits until `queue` has finished `position` items.
  struct Waiter {
    Waiter(StreamScheduler& in, StreamQueue& for_queue, uint64_t for_position);
    ~Waiter();
    StreamScheduler& scheduler;
    StreamQueue& queue;
    const uint64_t position;
    Waiter* next;
    std::condition_variable wake;
    bool is_done() const { return queue.finished >= position; }
  };

  void enqueue(StreamQueue& queue, StreamQueue::Item item);
  void grow(StreamQueue& queue);
  bool wait_until_finished(StreamQueue& queue, uint64_t position, Deadline deadline, Lock& lock);
  StreamQueue* runnable_on_caller();
  void work(StreamQueue& queue);
  void finish_front(StreamQueue& queue, Lock& lock);
  void drop_pending(StreamQueue& queue);
  void retire(StreamQueue& queue);
  void has_finished_items(StreamQueue& queue);
  void wake(StreamQueue& queue);
  void latch(Error error);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<StreamQueue>> queues_;  // existing streams, in creation order
  Waiter* waiters_ = nullptr;
  std::optional<Error> error_;
  int64_t growths_ = 0;
};

}  // namespace muonrt::host
