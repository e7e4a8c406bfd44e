#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control.hpp"
#include "cuda/nccl/fake_nccl.hpp"

/// The state that the ranks of the fake NCCL share. The machine's lock protects it.
namespace fake_nccl {

using namespace muonrt::cuda;

struct World;
struct Member;

/// A split of a nonblocking parent. The handle is written when all ranks have called `split`.
struct PendingSplit {
  NcclHandle* out = nullptr;
  Member* child = nullptr;
};

/// An operation in a stream. `queued` expires when the stream has run the operation or is
/// destroyed.
struct Enqueued {
  std::weak_ptr<char> queued;
  cudaStream_t stream = nullptr;
  int64_t position = -1;
};

struct Member {
  World* world = nullptr;
  int rank = 0, device = 0, polls = 0;  // number of further queries that return "in progress"
  int version = 0;                      // NCCL version of the thread that created the communicator
  std::thread::id maker = std::this_thread::get_id();
  NcclConfig config;
  bool blocking = false;
  bool connected = false, finalized = false, destroyed = false;
  std::atomic<bool> aborted = false;
  std::atomic<bool> busy = false, connecting = false;
  Member** job = nullptr;  // before 2.26: the job of the thread that made the last call
  std::vector<Enqueued> enqueued;
  std::vector<PendingSplit> pending_splits;
  int splits = 0;
  int64_t reductions = 0;
  int64_t in_flight = 0, max_in_flight = 0;  // numbers of messages
  std::map<int, int64_t> sent, received;     // numbers of messages by peer
  std::vector<std::string> log;
};

/// An operation of one rank that other ranks wait for.
struct Call {
  Member* member = nullptr;
  cudaStream_t stream = nullptr;
  int64_t position = -1;
  bool reached = false;
  int64_t messages = 0;  // messages that are in flight

  void ended() {
    member->in_flight -= messages;
    messages = 0;
  }
  bool reach() {
    if (member->aborted) return false;
    return reached = reached || emulator::reach(stream, position);
  }
};

struct Message {
  std::shared_ptr<Call> sender, receiver;
  const void* from = nullptr;
  void* to = nullptr;
  size_t sent = 0, expected = 0;
  bool done = false;
};

struct Reduction {
  std::map<int, std::shared_ptr<Call>> parts;
  std::map<int, std::pair<const void*, void*>> buffers;
  size_t count = 0;
  NcclType type = kNcclInt64;
  NcclOp op = kNcclSum;
  bool done = false;
};

struct World {
  int size = 0, joined = 0;
  std::set<int> connecting;  // ranks that have entered their first group
  std::map<std::pair<int, int>, std::map<int64_t, std::shared_ptr<Message>>> messages;
  std::map<int64_t, std::shared_ptr<Reduction>> reductions;
};

struct State {
  std::map<std::string, std::unique_ptr<World>> worlds;  // indexed by id
  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::string> problems;
  std::set<int> failing, stalled;
  std::map<int, NcclResult> refused;  // ranks whose creation fails, with the result
  int64_t ids = 0;
  int ending = 0;  // threads inside an abort or a destroy
  Counts counts;
};

inline State& state() {
  static State instance;
  return instance;
}

inline Member* member_of(NcclHandle handle) { return reinterpret_cast<Member*>(handle); }

/// Enqueues an operation. An abort waits for it.
/// @return  the position of the operation in the stream.
template <class Attempt>
int64_t enqueue(Member* member, cudaStream_t stream, Attempt attempt) {
  const auto token = std::make_shared<char>();
  const int64_t position = emulator::enqueue_operation(
      stream, [token, attempt = std::move(attempt)] { return attempt(); });
  std::erase_if(member->enqueued, [](const Enqueued& e) { return e.queued.expired(); });
  member->enqueued.push_back({token, stream, position});
  return position;
}

inline void complain(const std::string& text) { state().problems.push_back(text); }

/// The job of the calling thread before NCCL 2.26. NCCL stores it in thread-local variables.
struct Job {
  ~Job() {
    const emulator::MachineLock lock;
    if (!member) return;
    complain("a thread ended with a job of rank " + std::to_string(member->rank));
    member->job = nullptr;
  }
  Member* member = nullptr;
};
inline thread_local Job job;

/// Begins work for NCCL's own thread. The job of this work stays in the calling thread until the
/// calling thread finishes it.
inline void begin_job(Member* member) {
  if (member->version >= 22600 || member->blocking) return;
  job.member = member;
  member->job = &job.member;
}
inline void finish_job(Member* member) {
  if (!member->job) return;
  *member->job = nullptr;
  member->job = nullptr;
}
inline void expect_no_job() {
  if (!job.member) return;
  complain("NCCL finds a job of rank " + std::to_string(job.member->rank) + " unfinished");
}

/// Blocks a call until `ready` returns true or `member` is aborted. After 10 seconds, records a
/// violation and returns.
template <class Ready>
bool block(Member* member, Ready ready) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (true) {
    {
      const emulator::MachineLock lock;
      if (member->aborted) return false;
      if (ready()) return true;
      if (std::chrono::steady_clock::now() > end) {
        complain("rank " + std::to_string(member->rank) + " blocks in NCCL without a limit");
        return false;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// A call inside NCCL. Only one thread may be inside a communicator.
class Visit {
 public:
  /// @param ends  whether the call is an abort, which may run while another thread is blocked
  ///     inside.
  explicit Visit(Member* member, bool ends = false) : member_(member) {
    if (member_->busy.exchange(true) && !(ends && member_->connecting)) {
      const emulator::MachineLock lock;
      complain("two threads in a communicator of rank " + std::to_string(member_->rank));
    }
    const emulator::MachineLock lock;
    if (member_->destroyed || (member_->aborted && !ends))
      complain("rank " + std::to_string(member_->rank) + " used a communicator after its end");
  }
  ~Visit() { member_->busy = false; }

 private:
  Member* member_;
};

// The calls that enqueue work. The other calls are in fake_nccl.cpp.
NcclResult send(const void* from, size_t bytes, NcclType, int peer, NcclHandle, cudaStream_t);
NcclResult receive(void* to, size_t bytes, NcclType, int peer, NcclHandle, cudaStream_t);
NcclResult group_start();
NcclResult group_end();
NcclResult all_reduce(const void* in, void* out, size_t n, NcclType, NcclOp, NcclHandle,
                      cudaStream_t);

}  // namespace fake_nccl
