#include "cuda/nccl/nccl_link.hpp"

#include <utility>

#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kPartingMs = 2000;

NcclConfig config_of(const NcclOptions& options, const std::string& name) {
  NcclConfig out;
  out.blocking = 0;
  out.split_share = 0;
  // The thread blocks of a cluster run within one GPC (a part of the GPU). The persistent grids of
  // the products use clusters of two blocks and leave pairs of SMs free. By default, NCCL's
  // clusters have 4 blocks, which would not fit into a pair of SMs. If NCCL launched single blocks,
  // they would leave no pairs of SMs for the products.
  out.cga_cluster_size = 2;
  out.max_ctas = options.max_ctas;
  out.comm_name = name.c_str();
  return out;
}

}  // namespace

Error nccl_error(const NcclApi& api, NcclHandle handle, NcclResult result, const char* call) {
  const char* const text = api.error_string(result);
  const char* const detail = handle ? api.last_error(handle) : nullptr;
  return Error(result == kNcclUnhandledCudaError ? Status::kDevice : Status::kComm,
               cat("NCCL failed in ", call, ": ", text ? text : "unknown error",
                   detail && *detail ? cat(" (", detail, ")") : std::string(),
                   "; set NCCL_DEBUG=WARN to see its log"));
}

void check_ranks(const NcclApi& api, NcclHandle handle, const Bootstrap& bootstrap, int device) {
  int size = -1, rank = -1, gpu = -1;
  NcclResult state = kNcclSuccess;
  if (const NcclResult result = api.async_error(handle, &state); result != kNcclSuccess)
    throw nccl_error(api, nullptr, result, "ncclCommGetAsyncError");
  if (state != kNcclSuccess) throw nccl_error(api, handle, state, "work on nccl_comm");
  for (const NcclResult result :
       {api.count(handle, &size), api.user_rank(handle, &rank), api.device(handle, &gpu)}) {
    if (result != kNcclSuccess) throw nccl_error(api, nullptr, result, "ncclCommCount");
  }
  MUONRT_REQUIRE(size == bootstrap.size() && rank == bootstrap.rank() && gpu == device,
                 Status::kInvalidArgument, "nccl_comm has rank ", rank, " of ", size,
                 " on CUDA device ", gpu, ", but the host communicator has rank ", bootstrap.rank(),
                 " of ", bootstrap.size(), " and device_index is ", device,
                 "; pass communicators over the same ranks in the same order");
}

NcclLink::NcclLink(const NcclApi& api, Bootstrap& bootstrap, std::shared_ptr<SharedNcclComm> shared)
    : api_(api), bootstrap_(bootstrap), shared_(std::move(shared)) {}

void NcclLink::make(const NcclOptions& options, const NcclUniqueId& id, const Bootstrap& alarm) {
  const Deadline deadline = Deadline::in_ms(bootstrap_.timeout_ms());
  const auto from = static_cast<NcclHandle>(options.from);
  shared_->name = options.name.empty() ? "muonrt" : options.name;
  NcclConfig config = config_of(options, shared_->name);
  if (from) {
    split(from, config, deadline, alarm);
  } else {
    init(id, config, deadline, alarm);
  }
}

void NcclLink::discard_comm(const Error& error) noexcept {
  peers_notified_ = true;
  shared_->fail(error);
  if (own_) shared_->abort(api_);
}

void NcclLink::init(const NcclUniqueId& id, NcclConfig& config, Deadline deadline,
                    const Bootstrap& alarm) {
  const char* const what = "ncclCommInitRankConfig";
  try {
    const NcclResult result =
        api_.init(&shared_->handle, bootstrap_.size(), id, bootstrap_.rank(), &config);
    own_ = shared_->handle != nullptr;
    if (result != kNcclSuccess && result != kNcclInProgress)
      throw nccl_error(api_, nullptr, result, what);
    wait_until_accepted(shared_->handle, what, deadline, alarm);
  } catch (...) {
    // No work has been enqueued, so `closed` need not be set before the abort.
    if (own_) shared_->begin_abort(api_);
    throw;
  }
}

void NcclLink::split(NcclHandle from, NcclConfig& config, Deadline deadline,
                     const Bootstrap& alarm) {
  const char* const what = "ncclCommSplit";
  const NcclResult result = api_.split(from, 0, bootstrap_.rank(), &shared_->handle, &config);
  if (result != kNcclSuccess && result != kNcclInProgress)
    throw nccl_error(api_, nullptr, result, what);
  try {
    wait_until_accepted(from, what, deadline, alarm);
  } catch (...) {
    // The split continues as long as the parent communicator exists, and then writes the handle.
    // The object that contains the handle is therefore never freed.
    new std::shared_ptr<SharedNcclComm>(shared_);
    throw;
  }
  MUONRT_CHECK_INTERNAL(shared_->handle, "a communicator from ", what);
  own_ = true;
  try {
    wait_until_accepted(shared_->handle, what, deadline, alarm);
  } catch (...) {
    shared_->begin_abort(api_);
    throw;
  }
}

NcclLink::~NcclLink() {
  if (!own_ || error() || shared_->is_tearing_down()) {
    shared_->wait_for_teardown();
    return;
  }
  const QuietDeviceGuard guard(shared_->device());
  const NcclHandle handle = shared_->handle;
  NcclResult state = api_.finalize(handle);
  const Deadline deadline = Deadline::in_ms(kPartingMs);
  Backoff pauses = nccl_backoff();
  while (state == kNcclInProgress && !deadline.passed()) {
    pauses.pause();
    if (api_.async_error(handle, &state) != kNcclSuccess) state = kNcclInternalError;
  }
  if (state == kNcclSuccess) {
    shared_->destroy(api_);
    return;
  }
  shared_->fail(Error(
      Status::kComm,
      "the communicator was destroyed, but its peers did not destroy theirs within 2 seconds"));
  shared_->abort(api_);
}

/// Before NCCL 2.26, an operation leaves a job in thread-local variables of the calling thread.
/// This job breaks the thread's next NCCL call. A call that only queries errors does not complete
/// the job, but other calls do.
bool NcclLink::finished(NcclHandle asked, const char* what) const {
  NcclResult state = kNcclSuccess;
  NcclResult result = api_.async_error(asked, &state);
  if (result != kNcclSuccess) throw nccl_error(api_, asked, result, "ncclCommGetAsyncError");
  if (state == kNcclInProgress) return false;
  if (state != kNcclSuccess) throw nccl_error(api_, asked, state, what);
  int size = 0;
  result = api_.count(asked, &size);
  if (result != kNcclSuccess) throw nccl_error(api_, asked, result, what);
  return true;
}

void NcclLink::wait_until_accepted(NcclHandle asked, const char* what, Deadline deadline,
                                   const Bootstrap& alarm) {
  for (Backoff pauses = nccl_backoff();; pauses.pause()) {
    {
      const std::lock_guard lock(shared_->nccl);
      shared_->require_open();
      if (finished(asked, what)) return;
    }
    if (const auto pending_error = alarm.pending_error()) throw *pending_error;
    MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, what, " on rank ", bootstrap_.rank(),
                   " (nccl) did not connect to its peers before the timeout; check whether all "
                   "ranks are still running");
  }
}

std::optional<Error> NcclLink::poll_error() {
  if (const auto own = error()) return own;
  // The watchdog must be able to report a timeout even if a thread is blocked inside NCCL.
  if (const std::unique_lock lock(shared_->nccl, std::try_to_lock); lock) {
    if (const auto own = error()) return own;
    NcclResult state = kNcclSuccess;
    const NcclHandle handle = shared_->handle;
    const NcclResult result = api_.async_error(handle, &state);
    if (result != kNcclSuccess) return nccl_error(api_, handle, result, "ncclCommGetAsyncError");
    if (state != kNcclSuccess && state != kNcclInProgress)
      return nccl_error(api_, handle, state, "work on the GPU");
  }
  return bootstrap_.pending_error();
}

void NcclLink::end(const Error& error) noexcept {
  shared_->fail(error);
  if (!peers_notified_.exchange(true)) {
    bootstrap_.abort(*shared_->error());
  }
  shared_->begin_abort(api_);
}

void NcclLink::close(const Error& error) noexcept {
  end(error);
  shared_->wait_for_teardown();
}

}  // namespace muonrt::cuda
