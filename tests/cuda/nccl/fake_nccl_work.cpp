#include <algorithm>
#include <cstring>

#include "control.hpp"
#include "cuda/nccl/fake_nccl_world.hpp"

// Groups and reductions of the fake NCCL.
namespace fake_nccl {

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
thread_local int group_depth = 0;

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

/// Captures a group. The group sends its messages again in each replay. Only messages from a rank
/// to itself are supported.
NcclResult capture_group(const std::vector<Pending>& list) {
  std::vector<Pending> sends, receives;
  for (const Pending& p : list) {
    if (p.peer != p.member->rank) complain("a captured group with other ranks is not supported");
    (p.send ? sends : receives).push_back(p);
  }
  if (sends.size() != receives.size()) complain("a captured group has sends without receives");
  for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i) {
    if (sends[i].bytes != receives[i].bytes) complain("a captured message has two sizes");
    emulator::enqueue_operation(
        list[0].stream, [to = receives[i].to, from = sends[i].from, bytes = sends[i].bytes] {
          std::memcpy(to, from, bytes);
          return true;
        });
  }
  return kNcclSuccess;
}

/// Makes a blocking communicator wait in its first group until the other ranks have entered their
/// first group.
bool connect(Member* member, const std::vector<Pending>& list) {
  if (!member->blocking || member->connected) return true;
  const auto& arrived = member->world->connecting;
  member->connecting = true;
  {
    const emulator::MachineLock lock;
    member->world->connecting.insert(member->rank);
  }
  const bool connected = block(member, [&] {
    for (const Pending& p : list) {
      if (!arrived.count(p.peer)) return false;
    }
    return true;
  });
  member->connecting = false;
  return connected;
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

bool attempt(Reduction& r, const std::shared_ptr<Call>& part, int size) {
  const int rank = part->member->rank;
  const auto [in, out] = r.buffers.at(rank);
  if (part->member->aborted) {
    // Simulates the worst output that an aborted operation can leave: a sum that looks like the
    // consent of all ranks.
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

}  // namespace

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

NcclResult group_start() {
  ++group_depth;
  return kNcclSuccess;
}

NcclResult group_end() {
  if (--group_depth > 0 || open_group.empty()) return kNcclSuccess;
  const std::vector<Pending> list = std::exchange(open_group, {});
  Member* const member = list[0].member;
  const Visit visit(member);
  if (!connect(member, list)) return kNcclInternalError;
  const emulator::MachineLock lock;
  finish_job(member);
  expect_no_job();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(list[0].stream, &capture);
  if (capture != cudaStreamCaptureStatusNone) return capture_group(list);
  const auto part = std::make_shared<Call>();
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
  part->messages = std::ssize(messages);
  member->in_flight += part->messages;
  member->max_in_flight = std::max(member->max_in_flight, member->in_flight);
  part->position = enqueue(member, part->stream, [part, messages] {
    if (part->member->aborted) return true;
    part->reached = true;
    bool all = true;
    for (const auto& m : messages) all = move_message(*m) && all;
    if (all) part->ended();
    return all;
  });
  begin_job(member);
  const bool first =
      !std::exchange(member->connected, true);  // the first group establishes the connections
  if (member->blocking || (!first && member->version >= 22600)) return kNcclSuccess;
  member->polls = first ? 2 : 1;
  return kNcclInProgress;
}

NcclResult all_reduce(const void* in, void* out, size_t n, NcclType type, NcclOp op,
                      NcclHandle handle, cudaStream_t stream) {
  Member* const member = member_of(handle);
  const Visit visit(member);
  const emulator::MachineLock lock;
  finish_job(member);
  expect_no_job();
  begin_job(member);  // the result of the call does not show whether the job is finished
  auto& reduction = member->world->reductions[member->reductions++];
  if (!reduction) {
    reduction = std::make_shared<Reduction>();
    reduction->count = n;
    reduction->type = type;
    reduction->op = op;
  }
  if (reduction->count != n || reduction->type != type || reduction->op != op)
    complain("the ranks call different reductions");
  member->log.push_back("all_reduce " + std::to_string(n));
  const auto part = std::make_shared<Call>();
  part->member = member;
  part->stream = stream;
  reduction->parts[member->rank] = part;
  reduction->buffers[member->rank] = {in, out};
  part->position =
      enqueue(member, stream, [reduction = reduction, part, size = member->world->size] {
        return attempt(*reduction, part, size);
      });
  return kNcclSuccess;
}

}  // namespace fake_nccl
