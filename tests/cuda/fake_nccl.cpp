#include "cuda/fake_nccl.hpp"

#include <cstring>

#include "control.hpp"
#include "cuda/fake_nccl_world.hpp"

namespace fake_nccl {

using namespace muonrt::cuda;

namespace {

struct Pending {
  bool send;
  int peer;
  const void* from;
  void* to;
  size_t bytes;
  Member* member;
  cudaStream_t stream;
};
thread_local std::vector<Pending> open_group;
thread_local int group_depth = 0, version = 22809;

Member* member_of(NcclHandle handle) { return reinterpret_cast<Member*>(handle); }

void complain(const std::string& text) { state().problems.push_back(text); }

/// Inside NCCL: one thread at a time in one communicator.
class Visit {
 public:
  explicit Visit(Member* member, bool ends = false) : member_(member) {
    if (member_->busy.exchange(true)) {
      const emulator::MachineLock lock;
      complain("two threads in a communicator of rank " + std::to_string(member_->rank));
    }
    const emulator::MachineLock lock;
    if (member_->gone || (member_->aborted && !ends))
      complain("rank " + std::to_string(member_->rank) + " used a communicator after its end");
  }
  ~Visit() { member_->busy = false; }

 private:
  Member* member_;
};

NcclResult get_version(int* out) {
  *out = version;
  return kNcclSuccess;
}

NcclResult get_unique_id(NcclUniqueId* id) {
  const emulator::MachineLock lock;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "id %lld",
                static_cast<long long>(++state().ids));
  return kNcclSuccess;
}

NcclHandle join(const std::string& key, int size, int rank) {
  auto& world = state().worlds[key];
  if (!world) {
    world = std::make_unique<World>();
    world->size = size;
  }
  ++world->joined;
  auto member = std::make_unique<Member>();
  member->world = world.get();
  member->rank = rank;
  member->polls = 2;
  cudaGetDevice(&member->device);
  ++state().counts.made;
  state().members.push_back(std::move(member));
  return reinterpret_cast<NcclHandle>(state().members.back().get());
}

NcclResult init(NcclHandle* out, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  const emulator::MachineLock lock;
  if (config->blocking != 0 || config->magic != 0xcafebeef) complain("init: a blocking config");
  *out = join(id.internal, size, rank);
  return kNcclInProgress;
}

NcclResult split(NcclHandle parent, int, int key, NcclHandle* out, NcclConfig* config) {
  const emulator::MachineLock lock;
  Member* const member = member_of(parent);
  if (config->blocking != 0 || config->split_share != 0) complain("split: a shared config");
  const std::string name = "split " + std::to_string(member->splits++) + " of " +
                           std::to_string(reinterpret_cast<uintptr_t>(member->world));
  *out = join(name, member->world->size, key);
  return kNcclInProgress;
}

NcclResult finalize(NcclHandle handle) { return Visit(member_of(handle)), kNcclSuccess; }

NcclResult destroy(NcclHandle handle) {
  const Visit visit(member_of(handle));
  const emulator::MachineLock lock;
  member_of(handle)->gone = true;
  ++state().counts.destroyed;
  return kNcclSuccess;
}

NcclResult abort_member(NcclHandle handle) {
  const Visit visit(member_of(handle), true);
  const emulator::MachineLock lock;
  member_of(handle)->aborted = member_of(handle)->gone = true;
  ++state().counts.aborted;
  return kNcclSuccess;
}

NcclResult async_error(NcclHandle handle, NcclResult* out) {
  Member* const member = member_of(handle);
  const Visit visit(member);
  const emulator::MachineLock lock;
  *out = kNcclSuccess;
  if (state().failing.count(member->rank)) {
    *out = kNcclRemoteError;
  } else if (member->world->joined < member->world->size) {
    *out = kNcclInProgress;
  } else if (member->polls > 0) {
    --member->polls;
    *out = kNcclInProgress;
  }
  return kNcclSuccess;
}

NcclResult count(NcclHandle handle, int* out) {
  return *out = member_of(handle)->world->size, kNcclSuccess;
}
NcclResult user_rank(NcclHandle handle, int* out) {
  *out = member_of(handle)->rank;
  return kNcclSuccess;
}
NcclResult device(NcclHandle handle, int* out) {
  *out = member_of(handle)->device;
  return kNcclSuccess;
}
const char* error_string(NcclResult) { return "an error of the fake"; }
const char* last_error(NcclHandle) { return ""; }

NcclResult send(const void* from, size_t bytes, NcclType, int peer, NcclHandle handle,
                cudaStream_t stream) {
  open_group.push_back({true, peer, from, nullptr, bytes, member_of(handle), stream});
  return kNcclSuccess;
}
NcclResult receive(void* to, size_t bytes, NcclType, int peer, NcclHandle handle,
                   cudaStream_t stream) {
  open_group.push_back({false, peer, nullptr, to, bytes, member_of(handle), stream});
  return kNcclSuccess;
}

bool move_message(Message& m) {
  if (m.done) return true;
  if (!m.sender || !m.receiver || !m.sender->reach() || !m.receiver->reach()) return false;
  if (m.sent != m.expected) {
    complain("a message of " + std::to_string(m.sent) + " bytes, expected " +
             std::to_string(m.expected));
    return false;
  }
  std::memcpy(m.to, m.from, m.sent);
  return m.done = true;
}

NcclResult group_start() {
  ++group_depth;
  return kNcclSuccess;
}

/// What a stream captures is sent anew whenever it is replayed: here, from a rank to itself.
NcclResult capture_group(const std::vector<Pending>& list) {
  std::vector<Pending> sends, receives;
  for (const Pending& p : list) {
    if (p.peer != p.member->rank) complain("a captured group with other ranks is not imitated");
    (p.send ? sends : receives).push_back(p);
  }
  if (sends.size() != receives.size()) complain("a captured group sends what nobody receives");
  for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
    if (sends[i].bytes != receives[i].bytes) complain("a captured message of two sizes");
    emulator::enqueue_operation(
        list[0].stream, [to = receives[i].to, from = sends[i].from, bytes = sends[i].bytes] {
          std::memcpy(to, from, bytes);
          return true;
        });
  }
  return kNcclSuccess;
}

NcclResult group_end() {
  if (--group_depth > 0 || open_group.empty()) return kNcclSuccess;
  const std::vector<Pending> list = std::exchange(open_group, {});
  Member* const member = list[0].member;
  const Visit visit(member);
  const emulator::MachineLock lock;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(list[0].stream, &capture);
  if (capture != cudaStreamCaptureStatusNone) return capture_group(list);
  const auto part = std::make_shared<Part>();
  part->member = member;
  part->stream = list[0].stream;
  std::vector<std::shared_ptr<Message>> messages;
  std::string text = "group:";
  for (const Pending& p : list) {
    if (p.member != member || p.stream != part->stream) complain("a group over two streams");
    text += std::string(p.send ? " send " : " receive ") + std::to_string(p.peer) + " x " +
            std::to_string(p.bytes);
    const std::pair<int, int> pair =
        p.send ? std::pair(member->rank, p.peer) : std::pair(p.peer, member->rank);
    const int64_t number = p.send ? member->sent[p.peer]++ : member->received[p.peer]++;
    auto& message = member->world->messages[pair][number];
    if (!message) message = std::make_shared<Message>();
    if (p.send) {
      message->sender = part;
      message->from = p.from;
      message->sent = p.bytes;
    } else {
      message->receiver = part;
      message->to = p.to;
      message->expected = p.bytes;
    }
    messages.push_back(message);
  }
  member->log.push_back(text);
  part->position = emulator::enqueue_operation(part->stream, [part, messages] {
    if (part->member->aborted) return true;
    part->reached = true;
    bool all = true;
    for (const auto& m : messages) all = move_message(*m) && all;
    return all;
  });
  if (member->connected) return kNcclSuccess;
  member->connected = true;  // the first group makes the connections
  member->polls = 2;
  return kNcclInProgress;
}

template <class T>
void reduce(const Reduction& r) {
  std::vector<T> result(r.count);
  bool first = true;
  for (const auto& [rank, buffer] : r.buffers) {
    const T* const in = static_cast<const T*>(buffer.first);
    for (size_t i = 0; i < r.count; ++i) {
      if (first) {
        result[i] = in[i];
      } else if (r.op == kNcclSum) {
        result[i] = static_cast<T>(static_cast<uint64_t>(result[i]) + static_cast<uint64_t>(in[i]));
      } else {
        result[i] = std::max(result[i], in[i]);
      }
    }
    first = false;
  }
  for (const auto& [rank, buffer] : r.buffers)
    std::memcpy(buffer.second, result.data(), r.count * sizeof(T));
}

bool attempt(Reduction& r, const std::shared_ptr<Part>& part, int size) {
  const int rank = part->member->rank;
  const auto [in, out] = r.buffers.at(rank);
  if (part->member->aborted) {
    // The worst that an operation cut short may leave behind: what looks like everybody's consent.
    if (!r.done && r.type == kNcclInt64) {
      for (size_t i = 0; i < r.count; ++i)
        static_cast<int64_t*>(out)[i] =
            static_cast<int64_t>(static_cast<uint64_t>(size) *
                                 static_cast<uint64_t>(static_cast<const int64_t*>(in)[i]));
    }
    return true;
  }
  if (state().stalled.count(rank)) return false;
  part->reached = true;
  if (r.done) return true;
  if (std::ssize(r.parts) < size) return false;
  for (const auto& [other, p] : r.parts) {
    if (state().stalled.count(other) || !p->reach()) return false;
  }
  r.type == kNcclInt64 ? reduce<int64_t>(r) : reduce<int32_t>(r);
  return r.done = true;
}

NcclResult all_reduce(const void* in, void* out, size_t n, NcclType type, NcclOp op,
                      NcclHandle handle, cudaStream_t stream) {
  Member* const member = member_of(handle);
  const Visit visit(member);
  const emulator::MachineLock lock;
  auto& slot = member->world->reductions[member->reductions++];
  if (!slot) {
    slot = std::make_shared<Reduction>();
    slot->count = n;
    slot->type = type;
    slot->op = op;
  }
  if (slot->count != n || slot->type != type || slot->op != op)
    complain("reductions of two kinds meet");
  member->log.push_back("all_reduce " + std::to_string(n));
  const auto part = std::make_shared<Part>();
  part->member = member;
  part->stream = stream;
  slot->parts[member->rank] = part;
  slot->buffers[member->rank] = {in, out};
  part->position =
      emulator::enqueue_operation(stream, [reduction = slot, part, size = member->world->size] {
        return attempt(*reduction, part, size);
      });
  return kNcclSuccess;
}

}  // namespace

const NcclApi& api() {
  static const NcclApi table{get_version, get_unique_id, init,        split, finalize,
                             destroy,     abort_member,  async_error, count, user_rank,
                             device,      error_string,  last_error,  send,  receive,
                             all_reduce,  group_start,   group_end};
  return table;
}

void set_version(int v) { version = v; }

void reset() {
  const emulator::MachineLock lock;
  state() = State();
}

std::vector<std::string> problems() {
  const emulator::MachineLock lock;
  return state().problems;
}

std::vector<std::string> log(int rank) {
  const emulator::MachineLock lock;
  for (auto at = state().members.rbegin(); at != state().members.rend(); ++at) {
    if ((*at)->rank == rank) return (*at)->log;
  }
  return {};
}

Counts counts() {
  const emulator::MachineLock lock;
  return state().counts;
}

void fail(int rank) {
  const emulator::MachineLock lock;
  state().failing.insert(rank);
}

void stall_reductions(int rank, bool stalled) {
  const emulator::MachineLock lock;
  state().stalled.erase(rank);
  if (stalled) state().stalled.insert(rank);
}

}  // namespace fake_nccl
