#include "cuda/nccl_link.hpp"

#include <thread>

namespace muonrt::cuda {

namespace {

constexpr int64_t kPartingMs = 2000;

/// A wait of polls: at first without sleep.
class Patience {
 public:
  void pause() {
    if (++turns_ < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  int turns_ = 0;
};

NcclConfig config_of(const NcclOptions& options) {
  NcclConfig out;
  out.blocking = 0;
  out.split_share = 0;
  out.max_ctas = options.max_ctas;
  if (options.channels_per_net_peer > 0) out.channels_per_net_peer = options.channels_per_net_peer;
  if (options.traffic_class >= 0) out.traffic_class = options.traffic_class;
  out.comm_name = options.name.empty() ? "muonrt" : options.name.c_str();
  return out;
}

}  // namespace

Error nccl_error(const NcclApi& api, NcclHandle handle, NcclResult result, const char* call) {
  const char* const words = api.error_string(result);
  const char* const more = handle ? api.last_error(handle) : nullptr;
  return Error(result == kNcclUnhandledCudaError ? Status::kDevice : Status::kComm,
               cat("NCCL failed in ", call, ": ", words ? words : "unknown error",
                   more && *more ? cat(" (", more, ")") : std::string(),
                   "; set NCCL_DEBUG=WARN for its own account"));
}

NcclLink::NcclLink(const NcclApi& api, Bootstrap& bootstrap, const NcclOptions& options,
                   const NcclUniqueId& id)
    : api_(api), bootstrap_(bootstrap), borrowed_(options.from && options.borrow) {
  connect(options, id);
}

void NcclLink::connect(const NcclOptions& options, const NcclUniqueId& id) {
  const Deadline deadline = Deadline::in_ms(bootstrap_.timeout_ms());
  const auto from = static_cast<NcclHandle>(options.from);
  if (from) check_ranks(from, options.device_index);
  if (borrowed_) {
    handle_ = from;
    return;
  }
  NcclConfig config = config_of(options);
  const char* const what = from ? "ncclCommSplit" : "ncclCommInitRankConfig";
  try {
    const NcclResult result =
        from ? api_.split(from, 0, bootstrap_.rank(), &handle_, &config)
             : api_.init(&handle_, bootstrap_.size(), id, bootstrap_.rank(), &config);
    if (result != kNcclSuccess && result != kNcclInProgress)
      throw nccl_error(api_, nullptr, result, what);
    if (from) settle(from, what, deadline);
    MUONRT_CHECK_INTERNAL(handle_ != nullptr, "a communicator from ", what);
    settle(handle_, what, deadline);
  } catch (...) {
    if (handle_) api_.abort(handle_);
    throw;
  }
}

void NcclLink::check_ranks(NcclHandle handle, int device) const {
  int size = -1, rank = -1, gpu = -1;
  for (const NcclResult result :
       {api_.count(handle, &size), api_.user_rank(handle, &rank), api_.device(handle, &gpu)}) {
    if (result != kNcclSuccess) throw nccl_error(api_, nullptr, result, "ncclCommCount");
  }
  MUONRT_REQUIRE(size == bootstrap_.size() && rank == bootstrap_.rank() && gpu == device,
                 Status::kInvalidArgument, "nccl_comm has rank ", rank, " of ", size,
                 " on CUDA device ", gpu, ", but the host communicator has rank ",
                 bootstrap_.rank(), " of ", bootstrap_.size(), " and device_index is ", device,
                 "; pass communicators over the same ranks in the same order");
}

NcclLink::~NcclLink() {
  if (borrowed_ || ended_ || !handle_) return;
  NcclResult state = api_.finalize(handle_);
  const Deadline deadline = Deadline::in_ms(kPartingMs);
  Patience patience;
  while (state == kNcclInProgress && !deadline.passed()) {
    patience.pause();
    if (api_.async_error(handle_, &state) != kNcclSuccess) state = kNcclInternalError;
  }
  if (state == kNcclSuccess) {
    api_.destroy(handle_);
  } else {
    api_.abort(handle_);
  }
}

void NcclLink::require_open() const {
  if (const auto error = this->error()) throw *error;
}

void NcclLink::settle(NcclHandle asked, const char* what, Deadline deadline) {
  for (Patience patience;; patience.pause()) {
    NcclResult state = kNcclSuccess;
    {
      const std::lock_guard lock(nccl_mutex_);
      require_open();
      const NcclResult result = api_.async_error(asked, &state);
      if (result != kNcclSuccess) throw nccl_error(api_, asked, result, "ncclCommGetAsyncError");
    }
    if (state == kNcclSuccess) return;
    if (state != kNcclInProgress) throw nccl_error(api_, asked, state, what);
    if (const auto trouble = bootstrap_.trouble()) throw *trouble;
    MUONRT_REQUIRE(
        !deadline.passed(), Status::kTimeout, what, " of rank ", bootstrap_.rank(),
        " (nccl) did not meet its peers before the deadline; look for a rank that is late "
        "or gone");
  }
}

std::optional<Error> NcclLink::look() {
  if (const auto own = error()) return own;
  {
    const std::lock_guard lock(nccl_mutex_);
    if (ended_) return error();
    NcclResult state = kNcclSuccess;
    const NcclResult result = api_.async_error(handle_, &state);
    if (result != kNcclSuccess) return nccl_error(api_, handle_, result, "ncclCommGetAsyncError");
    if (state != kNcclSuccess && state != kNcclInProgress)
      return nccl_error(api_, handle_, state, "work on the GPU");
  }
  return bootstrap_.trouble();
}

void NcclLink::close(const Error& error, const std::function<void()>& before) noexcept {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_) return;
    error_ = error;
  }
  before();
  bootstrap_.abort(error.status(), error.message());
  const std::lock_guard lock(nccl_mutex_);
  ended_ = true;
  api_.abort(handle_);
}

std::optional<Error> NcclLink::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

}  // namespace muonrt::cuda
