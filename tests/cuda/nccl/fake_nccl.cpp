#include "cuda/nccl/fake_nccl.hpp"

#include <cstring>
#include <optional>

#include "control.hpp"
#include "cuda/nccl/fake_nccl_world.hpp"

namespace fake_nccl {

using namespace muonrt::cuda;

namespace {

thread_local int version = 22809;

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

NcclHandle join(const std::string& key, int size, int rank, const NcclConfig& config) {
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
  member->version = version;
  member->config = config;
  member->blocking = config.blocking == 1;
  cudaGetDevice(&member->device);
  ++state().counts.made;
  state().members.push_back(std::move(member));
  return reinterpret_cast<NcclHandle>(state().members.back().get());
}

std::optional<NcclResult> refusal(int rank) {
  const auto found = state().refused.find(rank);
  return found == state().refused.end() ? std::nullopt : std::optional(found->second);
}

bool complete(const Member* member) { return member->world->joined == member->world->size; }

NcclResult init(NcclHandle* out, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  Member* member = nullptr;
  {
    const emulator::MachineLock lock;
    if (config->magic != 0xcafebeef) complain("init: no config");
    expect_no_job();
    if (const auto refused = refusal(rank)) return *refused;
    *out = join(id.internal, size, rank, *config);
    member = member_of(*out);
    begin_job(member);
  }
  if (!member->blocking) return kNcclInProgress;
  return block(member, [&] { return complete(member); }) ? kNcclSuccess : kNcclInternalError;
}

/// Writes the handles of the splits for which all ranks have called `split`.
void complete_splits(Member* parent) {
  std::erase_if(parent->pending_splits, [](const PendingSplit& b) {
    if (!complete(b.child)) return false;
    *b.out = reinterpret_cast<NcclHandle>(b.child);
    return true;
  });
}

// The parent determines whether the call blocks; the config does not.
NcclResult split(NcclHandle handle, int, int key, NcclHandle* out, NcclConfig* config) {
  Member* const parent = member_of(handle);
  const Visit visit(parent);
  Member* child = nullptr;
  {
    const emulator::MachineLock lock;
    finish_job(parent);
    expect_no_job();
    if (const auto refused = refusal(parent->rank)) return *refused;
    const std::string name = "split " + std::to_string(parent->splits++) + " of " +
                             std::to_string(reinterpret_cast<uintptr_t>(parent->world));
    child = member_of(join(name, parent->world->size, key, *config));
    *out = nullptr;
    if (!parent->blocking) {
      parent->pending_splits.push_back({out, child});
      parent->polls = 2;
      begin_job(parent);
      return kNcclSuccess;  // NCCL returns success although the split has only started
    }
  }
  if (!block(parent, [&] { return complete(child); })) return kNcclInternalError;
  *out = reinterpret_cast<NcclHandle>(child);
  return kNcclSuccess;
}

/// Returns whether the streams have run all operations that the communicator has enqueued.
bool passed(Member* member) {
  std::erase_if(member->enqueued, [](const Enqueued& e) {
    if (!e.queued.expired()) emulator::reach(e.stream, e.position + 1);
    return e.queued.expired();
  });
  return member->enqueued.empty();
}

// Returns "in progress" until the streams have run the enqueued operations.
NcclResult finalize(NcclHandle handle) {
  const Visit visit(member_of(handle));
  const emulator::MachineLock lock;
  finish_job(member_of(handle));
  expect_no_job();
  begin_job(member_of(handle));
  member_of(handle)->finalized = true;
  return passed(member_of(handle)) ? kNcclSuccess : kNcclInProgress;
}

/// Ends a communicator and frees its memory. Freeing memory waits for the GPU.
template <class Ready>
NcclResult end(Member* member, int64_t Counts::*count, Ready ready) {
  while (true) {
    {
      const emulator::MachineLock lock;
      if (ready() && emulator::drain(member->maker)) {
        member->destroyed = true;
        ++(state().counts.*count);
        return kNcclSuccess;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Counts a thread that is inside an abort or a destroy. The thread is counted until it has left
/// the communicator, because `reset` may free the communicator only then.
struct Ending {
  Ending() {
    const emulator::MachineLock lock;
    ++state().ending;
  }
  ~Ending() {
    const emulator::MachineLock lock;
    --state().ending;
  }
};

NcclResult destroy(NcclHandle handle) {
  const Ending ending;
  Member* const member = member_of(handle);
  const Visit visit(member);
  {
    const emulator::MachineLock lock;
    finish_job(member);
    expect_no_job();
  }
  return end(member, &Counts::destroyed, [] { return true; });
}

// Behaves like NCCL's abort: immediately ends the operations that their streams have reached, and
// waits for all other operations.
NcclResult abort_member(NcclHandle handle) {
  const Ending ending;
  Member* const member = member_of(handle);
  const Visit visit(member, true);
  {
    const emulator::MachineLock lock;
    finish_job(member);
    member->aborted = true;
  }
  return end(member, &Counts::aborted, [&] { return passed(member); });
}

NcclResult async_error(NcclHandle handle, NcclResult* out) {
  Member* const member = member_of(handle);
  const Visit visit(member);
  const emulator::MachineLock lock;
  complete_splits(member);
  *out = kNcclSuccess;
  if (state().failing.count(member->rank)) {
    *out = kNcclRemoteError;
  } else if (!complete(member) || !member->pending_splits.empty() ||
             (member->finalized && !passed(member))) {
    *out = kNcclInProgress;
  } else if (member->polls > 0 && !member->blocking) {
    --member->polls;
    *out = kNcclInProgress;
  }
  return kNcclSuccess;
}

/// Returns a property of a communicator.
NcclResult ask(NcclHandle handle, int* out, int Member::*property) {
  Member* const member = member_of(handle);
  const Visit visit(member);
  const emulator::MachineLock lock;
  if (!member->blocking &&
      (!complete(member) || !member->pending_splits.empty() || member->polls > 0))
    return kNcclInvalidArgument;
  finish_job(member);
  *out = property ? member->*property : member->world->size;
  return kNcclSuccess;
}
NcclResult count(NcclHandle handle, int* out) { return ask(handle, out, nullptr); }
NcclResult user_rank(NcclHandle handle, int* out) { return ask(handle, out, &Member::rank); }
NcclResult device(NcclHandle handle, int* out) { return ask(handle, out, &Member::device); }
const char* error_string(NcclResult) { return "an error of the fake"; }
const char* last_error(NcclHandle) { return ""; }

const Member* last_of(int rank) {
  for (auto at = state().members.rbegin(); at != state().members.rend(); ++at) {
    if ((*at)->rank == rank) return at->get();
  }
  return nullptr;
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
  while (ending() > 0) std::this_thread::yield();
  const emulator::MachineLock lock;
  state() = State();
}

int ending() {
  const emulator::MachineLock lock;
  return state().ending;
}

std::vector<std::string> problems() {
  const emulator::MachineLock lock;
  return state().problems;
}

std::vector<std::string> log(int rank) {
  const emulator::MachineLock lock;
  const Member* const member = last_of(rank);
  return member ? member->log : std::vector<std::string>();
}

Counts counts() {
  const emulator::MachineLock lock;
  return state().counts;
}

NcclConfig config(int rank) {
  const emulator::MachineLock lock;
  const Member* const member = last_of(rank);
  return member ? member->config : NcclConfig();
}

int64_t max_in_flight(int rank) {
  const emulator::MachineLock lock;
  const Member* const member = last_of(rank);
  return member ? member->max_in_flight : 0;
}

std::vector<const void*> unwritten() {
  const emulator::MachineLock lock;
  std::vector<const void*> out;
  for (const auto& member : state().members) {
    for (const PendingSplit& b : member->pending_splits) out.push_back(b.out);
  }
  return out;
}

void fail(int rank) {
  const emulator::MachineLock lock;
  state().failing.insert(rank);
}

void refuse(int rank, NcclResult result) {
  const emulator::MachineLock lock;
  state().refused[rank] = result;
}

void stall_reductions(int rank, bool stalled) {
  const emulator::MachineLock lock;
  state().stalled.erase(rank);
  if (stalled) state().stalled.insert(rank);
}

}  // namespace fake_nccl
