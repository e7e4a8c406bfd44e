#include "host/stream_scheduler.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>

#include "base/error.hpp"
#include "base/signal_mask.hpp"
#include "host/fp_env.hpp"

namespace muonrt::host {

namespace {

const char* name_of(StreamKind kind) {
  switch (kind) {
    case StreamKind::kCompute:
      return "compute";
    case StreamKind::kComm:
      return "comm";
    case StreamKind::kCommOnCaller:
      return "comm-on-caller";
  }
  return "unknown";
}

/// A position in a queue; guarded by the scheduler's mutex.
class HostEvent final : public Event {
 public:
  std::shared_ptr<StreamQueue> queue;  // null: never recorded
  uint64_t position = 0;
};

template <class To, class From>
To& cast_or_throw(From& from) {
  auto* to = dynamic_cast<To*>(&from);
  MUONRT_CHECK_INTERNAL(to != nullptr, "stream or event of another device");
  return *to;
}

Error thread_was_ended() {
  return make_error(Status::kAborted,
                    "a task's thread ended inside a callback; return from the callback instead");
}

/// Runs a task and returns the error that it throws. Does not catch the unwinding of pthread_exit
/// and thread cancellation.
MUONRT_CATCHES_UNWINDING std::optional<Error> run_catching(Task& task) {
  try {
    task();
    return std::nullopt;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return current_error();
  }
}

}  // namespace

/// The handle of a queue, with the queue's thread, if there is one.
class QueueStream final : public HostStream {
 public:
  QueueStream(std::shared_ptr<StreamScheduler> scheduler, StreamKind kind)
      : scheduler_(std::move(scheduler)), queue_(std::make_shared<StreamQueue>(kind)) {
    if (kind == StreamKind::kCommOnCaller) return;
    thread_ = start_thread("a stream", [this] { scheduler_->work(*queue_); });
  }
  ~QueueStream() override {
    scheduler_->retire(*queue_);
    if (thread_.joinable()) thread_.join();
  }
  void enqueue(Task task) override { scheduler_->enqueue(*queue_, {std::move(task), nullptr, 0}); }

  const std::shared_ptr<StreamQueue>& queue() const { return queue_; }
  const StreamScheduler* scheduler() const { return scheduler_.get(); }

 private:
  std::shared_ptr<StreamScheduler> scheduler_;
  std::shared_ptr<StreamQueue> queue_;
  std::thread thread_;
};

HostStream& host_stream(Stream& stream) { return cast_or_throw<HostStream>(stream); }

std::unique_ptr<Stream> StreamScheduler::create_stream(StreamKind kind) {
  auto stream = std::make_unique<QueueStream>(shared_from_this(), kind);
  const Lock lock(mutex_);
  queues_.push_back(stream->queue());
  return stream;
}

std::unique_ptr<Event> StreamScheduler::create_event() { return std::make_unique<HostEvent>(); }

void StreamScheduler::record(Event& event, Stream& stream) {
  auto& mark = cast_or_throw<HostEvent>(event);
  auto& queue = cast_or_throw<QueueStream>(stream);
  MUONRT_CHECK_INTERNAL(queue.scheduler() == this, "stream of another device");
  const Lock lock(mutex_);
  mark.queue = queue.queue();
  mark.position = mark.queue->enqueued;
}

void StreamScheduler::wait(Stream& stream, const Event& event) {
  const auto& mark = cast_or_throw<const HostEvent>(event);
  auto& queue = cast_or_throw<QueueStream>(stream);
  MUONRT_CHECK_INTERNAL(queue.scheduler() == this, "stream of another device");
  StreamQueue::Item item;
  {
    const Lock lock(mutex_);
    // The order of the queue already guarantees that earlier work of the same stream is complete.
    if (!mark.queue || mark.queue == queue.queue()) return;
    item.after = mark.queue;
    item.position = mark.position;
  }
  enqueue(*queue.queue(), std::move(item));
}

void StreamScheduler::synchronize(const Event& event, Deadline deadline) {
  const auto& mark = cast_or_throw<const HostEvent>(event);
  Lock lock(mutex_);
  const std::shared_ptr<StreamQueue> queue = mark.queue;
  const uint64_t position = mark.position;
  if (!queue) return;
  MUONRT_REQUIRE(wait_until_finished(*queue, position, deadline, lock), Status::kTimeout,
                 "an event of the ", name_of(queue->kind),
                 " stream did not complete before the timeout (", queue->finished, " of ", position,
                 " tasks are complete); check whether the other ranks are still running, or raise "
                 "the timeout");
}

/// Returns false if `deadline` passes before the queue has finished `position` items.
bool StreamScheduler::wait_until_finished(StreamQueue& queue, uint64_t position, Deadline deadline,
                                          Lock& lock) {
  if (queue.finished >= position) return true;
  Waiter self(*this, queue, position);
  while (!self.is_done() && !deadline.passed()) {
    if (StreamQueue* const ready = runnable_on_caller()) {
      finish_front(*ready, lock);
    } else {
      self.wake.wait_until(lock, deadline.at());
    }
  }
  return self.is_done();
}

StreamScheduler::Waiter::Waiter(StreamScheduler& in, StreamQueue& for_queue, uint64_t for_position)
    : scheduler(in), queue(for_queue), position(for_position), next(in.waiters_) {
  scheduler.waiters_ = this;
}

StreamScheduler::Waiter::~Waiter() {
  Waiter** at = &scheduler.waiters_;
  while (*at != this) at = &(*at)->next;
  *at = next;
  // This thread may have been the one to run a stream's work; if so, another waiting thread must do
  // it.
  for (const auto& each : scheduler.queues_) scheduler.wake(*each);
}

std::optional<Error> StreamScheduler::error() const {
  const Lock lock(mutex_);
  return error_;
}

void StreamScheduler::clear_error() {
  const Lock lock(mutex_);
  error_.reset();
  for (const auto& queue : queues_) queue->failed = false;
}

int64_t StreamScheduler::growths() const {
  const Lock lock(mutex_);
  return growths_;
}

void StreamScheduler::enqueue(StreamQueue& queue, StreamQueue::Item item) {
  Lock lock(mutex_);
  while (queue.full()) {
    try {
      grow(queue);
    } catch (const std::bad_alloc&) {
      // Work that is already enqueued does not depend on this item, so it will complete and make
      // room.
      wait_until_finished(queue, queue.finished + 1, Deadline::in_ms(kMaxTimeoutMs), lock);
    }
  }
  queue.ring[queue.enqueued++ & (queue.ring.size() - 1)] = std::move(item);
  if (queue.lost_thread) drop_pending(queue);
  wake(queue);
}

void StreamScheduler::grow(StreamQueue& queue) {
  const size_t size = queue.ring.size();
  std::vector<StreamQueue::Item> larger(2 * size);
  for (uint64_t i = queue.finished; i < queue.enqueued; ++i)
    larger[i & (2 * size - 1)] = std::move(queue.ring[i & (size - 1)]);
  queue.ring.swap(larger);
  ++growths_;
}

void StreamScheduler::work(StreamQueue& queue) {
  const FpEnvironment fp_environment;
  Lock lock(mutex_);
  for (;;) {
    queue.ready.wait(lock, [&] { return queue.stopping || queue.runnable(); });
    if (queue.stopping) return drop_pending(queue);
    finish_front(queue, lock);
  }
}

/// Runs or skips the front item. The lock is released while a task is running.
MUONRT_CATCHES_UNWINDING void StreamScheduler::finish_front(StreamQueue& queue, Lock& lock) {
  StreamQueue::Item& front = queue.front();
  if (front.after) {
    if (front.position > front.after->dropped_from) queue.failed = true;
    front.after.reset();
  } else if (!queue.failed) {
    Task task = front.task;  // the ring may be reallocated while the task is running
    queue.running = true;
    lock.unlock();
    std::optional<Error> error;
    {
      const FpEnvironment fp_environment;
      try {
        error = run_catching(task);
      } catch (const abi::__forced_unwind&) {
        lock.lock();
        queue.running = false;
        queue.failed = true;
        ++queue.finished;
        latch(thread_was_ended());
        if (queue.kind != StreamKind::kCommOnCaller) {
          queue.lost_thread = true;
          drop_pending(queue);
        }
        has_finished_items(queue);
        throw;
      }
    }
    lock.lock();
    queue.running = false;
    if (error) {
      queue.failed = true;
      latch(*std::move(error));
    }
  }
  ++queue.finished;
  has_finished_items(queue);
}

void StreamScheduler::drop_pending(StreamQueue& queue) {
  int64_t tasks = 0;
  queue.dropped_from = std::min(queue.dropped_from, queue.finished);
  for (; !queue.empty(); ++queue.finished) {
    tasks += queue.front().after == nullptr && !queue.failed;
    queue.front().after.reset();
  }
  has_finished_items(queue);
  if (tasks == 0) return;
  if (queue.lost_thread) return latch(thread_was_ended());
  latch(make_error(Status::kAborted, "a ", name_of(queue.kind), " stream was destroyed with ",
                   tasks, " tasks pending; synchronize the stream before you destroy it"));
}

void StreamScheduler::retire(StreamQueue& queue) {
  Lock lock(mutex_);
  queue.stopping = true;
  queue.ready.notify_all();
  std::erase_if(queues_, [&](const auto& each) { return each.get() == &queue; });
  if (queue.kind != StreamKind::kCommOnCaller) return;  // its thread drops the rest
  queue.ready.wait(lock, [&] { return !queue.running; });
  drop_pending(queue);
}

/// Wakes the threads that can continue after items of the queue have finished.
void StreamScheduler::has_finished_items(StreamQueue& queue) {
  for (Waiter* w = waiters_; w; w = w->next)
    if (&w->queue == &queue && w->is_done()) w->wake.notify_one();
  for (const auto& each : queues_)
    if (!each->empty() && each->front().after.get() == &queue) wake(*each);
  if (queue.stopping) queue.ready.notify_all();
}

/// If the front item of the queue may run now, wakes the threads that may run it.
void StreamScheduler::wake(StreamQueue& queue) {
  if (!queue.runnable()) return;
  if (queue.kind != StreamKind::kCommOnCaller) return queue.ready.notify_one();
  for (Waiter* w = waiters_; w; w = w->next) w->wake.notify_one();
}

StreamQueue* StreamScheduler::runnable_on_caller() {
  for (const auto& queue : queues_)
    if (queue->kind == StreamKind::kCommOnCaller && queue->runnable()) return queue.get();
  return nullptr;
}

void StreamScheduler::latch(Error error) {
  if (!error_) error_ = std::move(error);
}

}  // namespace muonrt::host
