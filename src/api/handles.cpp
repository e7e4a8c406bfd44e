#include "api/handles.hpp"

#include <unistd.h>

#include "api/as_status.hpp"
#include "base/log.hpp"

namespace muonrt::api {

namespace {

constexpr HandleKind kKinds[] = {HandleKind::kComm,           HandleKind::kThreadGroup,
                                 HandleKind::kOptimizer,      HandleKind::kCheckpoint,
                                 HandleKind::kOrthogonalizer, HandleKind::kPlan};

const char* name_of(HandleKind kind) {
  switch (kind) {
    case HandleKind::kComm:
      return "a communicator";
    case HandleKind::kThreadGroup:
      return "a thread group";
    case HandleKind::kOptimizer:
      return "an optimizer";
    case HandleKind::kCheckpoint:
      return "a checkpoint";
    case HandleKind::kOrthogonalizer:
      return "an orthogonalizer";
    case HandleKind::kPlan:
      return "a plan";
  }
  return "no handle of muonrt";
}

constexpr uint64_t value_of(HandleKind kind) { return static_cast<uint64_t>(kind); }

/// Describes a handle whose header has the value `magic`, and how to correct the error.
std::string describe(uint64_t magic, HandleKind expected) {
  for (const HandleKind kind : kKinds) {
    if (magic == value_of(kind)) return cat(name_of(kind), "; pass ", name_of(expected));
    if (magic == ~value_of(kind))
      return cat(name_of(kind), " that was destroyed before; pass one that is not destroyed");
  }
  return cat("no handle of muonrt; pass ", name_of(expected));
}

void require_kind(uint64_t magic, HandleKind kind, const char* function, const char* argument) {
  MUONRT_REQUIRE(magic == value_of(kind), Status::kInvalidArgument, function, ": ", argument,
                 " is ", describe(magic, kind));
}

}  // namespace

CommCall::CommCall(muonrt_comm* comm, const char* function, const char* argument) : comm_(comm) {
  unwrap(comm, function, argument);  // throws if the handle has a different type and thus no mutex
  const std::lock_guard lock(comm->mutex);
  unwrap(comm, function, argument);
  next_ = comm->calls;
  comm->calls = this;
}

CommCall::~CommCall() {
  const std::lock_guard lock(comm_->mutex);
  CommCall** at = &comm_->calls;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
  comm_->call_ended.notify_all();
}

void destroy_comm(muonrt_comm* comm) {
  constexpr const char* kName = "muonrt_comm_destroy";
  const auto magic = static_cast<uint64_t>(HandleKind::kComm);
  if (!comm || comm->head.magic != magic || comm->head.process != getpid())
    return destroy_handle(comm, kName, "comm");
  std::unique_lock lock(comm->mutex);
  for (const CommCall* call = comm->calls; call; call = call->next_)
    MUONRT_REQUIRE(call->thread_ != std::this_thread::get_id(), Status::kInvalidState, kName,
                   ": this thread is inside a call on comm, which has called a function of the "
                   "caller; destroy comm after that call has returned");
  mark_destroyed(comm->head, HandleKind::kComm, kName, "comm");
  comm->call_ended.wait(lock, [&] { return !comm->calls; });
  lock.unlock();
  comm->body.reset();
}

muonrt_comm* release_comm(std::unique_ptr<muonrt_comm> comm) noexcept {
  const CommBody& body = *comm->body;
  log(LogLevel::kInfo, [&] {
    return cat("rank ", body.host.rank(), ": communicator created (",
               body.device ? body.device->describe() : body.host.describe(), ")");
  });
  return release_handle(std::move(comm));
}

HandleHeader::HandleHeader(HandleKind kind) : magic(value_of(kind)), process(getpid()) {}

void check_handle(const HandleHeader* head, HandleKind kind, const char* function,
                  const char* argument) {
  require_pointer(head, function, argument);
  require_kind(head->magic, kind, function, argument);
  const pid_t here = getpid();
  MUONRT_REQUIRE(head->process == here, Status::kInvalidState, function, ": ", argument,
                 " was made by process ", head->process, ", and this is process ", here,
                 ", a child without its threads and connections; create a new one in this process");
}

bool mark_destroyed(HandleHeader& head, HandleKind kind, const char* function,
                    const char* argument) {
  uint64_t seen = value_of(kind);
  // If two threads destroy the handle at the same time, only one of them succeeds.
  if (!head.magic.compare_exchange_strong(seen, ~seen))
    require_kind(seen, kind, function, argument);
  return head.process == getpid();
}

}  // namespace muonrt::api
