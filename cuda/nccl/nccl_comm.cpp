#include "cuda/nccl/nccl_comm.hpp"

#include <atomic>
#include <set>
#include <vector>

#include "base/checked.hpp"
#include "cuda/device/cached_memory.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/cuda_graph.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_setup.hpp"
#include "cuda/nccl/nccl_watchdog.hpp"

namespace muonrt::cuda {

namespace {

// kFirstScratch is the initial size of the scratch memory. The warm-up allocates more if necessary.
constexpr int64_t kFirstScratch = 65536, kMaxMessages = 256;

/// Records `event` on the stream when the Mark is destroyed, even after an exception.
class Mark {
 public:
  Mark(const CudaEvent& event, cudaStream_t stream) : event_(event.handle()), stream_(stream) {}
  ~Mark() {
    if (cudaEventRecord(event_, stream_) != cudaSuccess) cudaGetLastError();  // the GPU is lost
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  const cudaEvent_t event_;
  const cudaStream_t stream_;
};

/// One thread enqueues the operations, in the same order on all ranks. An exchange is one group of
/// sends and receives. The watchdog aborts operations that exceed the timeout.
class NcclComm final : public Comm {
 public:
  /// @param borrowed  if this communicator is a duplicate that borrows the handle of the original,
  ///     the original's state; otherwise null.
  NcclComm(const NcclApi& (*api)(), MakeBootstrap bootstrap, const NcclOptions& options,
           const std::shared_ptr<SharedNcclComm>& borrowed)
      : api_(api), options_(options), bootstrap_(bootstrap()) {
    nccl_create_or_abort(*bootstrap_, [&] { begin(borrowed); });
  }
  /// Does not wait for a stream. Memory that enqueued work uses stays allocated until the work has
  /// ended.
  ~NcclComm() override {
    watchdog_.reset();
    link_.reset();
    for (const auto& memory : scratch_) memory->keep_until(last_);
    shared_->keep_until(last_);
  }

  int rank() const override { return bootstrap_->rank(); }
  int size() const override { return bootstrap_->size(); }
  std::string describe() const override {
    return cat("nccl ", nccl_version_text(version_), ", ", bootstrap_->describe());
  }
  StreamKind stream_kind() const override { return StreamKind::kComm; }
  int occupied_sms() const override { return size() > 1 ? options_.max_ctas : 0; }
  bool serves(const Device& device) const override {
    const auto* const mine = dynamic_cast<const CudaDevice*>(&device);
    return mine && mine->index() == options_.device_index;
  }

  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override {
    run("exchange", std::ssize(sends) + std::ssize(receives), stream, [&](cudaStream_t s) {
      check(sends, receives);
      move(sends, receives, s);
      for (const SendTo& m : sends) bytes_sent_ += m.peer == rank() ? 0 : m.bytes;
      ++exchanges_;
    });
  }

  void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    run("reduce_sum", options_.max_ctas, stream, [&](cudaStream_t s) {
      // After an aborted exchange, the streams continue with undefined message contents. A rank
      // that has already noticed the abort adds zeros, so that the sum does not contain its
      // consent.
      const int64_t bytes = checked_mul(n, 8);
      auto* const sum = static_cast<int64_t*>(scratch(bytes));
      MUONRT_CUDA(cudaMemsetAsync(sum, 0, static_cast<size_t>(bytes), s));
      copy_unless_closed(in, sum, n, shared_->closed(), s);
      all_reduce(sum, sum, n, kNcclInt64, kNcclSum, s);
      copy_unless_closed(sum, out, n, shared_->closed(), s);
    });
  }

  void reduce_max(Stream& stream, const float* in, float* out, int64_t n) override {
    run("reduce_max", options_.max_ctas, stream, [&](cudaStream_t s) {
      auto* const keys = static_cast<int32_t*>(scratch(checked_mul(n, 4)));
      order_floats(in, keys, n, s);
      all_reduce(keys, keys, n, kNcclInt32, kNcclMax, s);
      copy_floats_unless_closed(keys, out, n, shared_->closed(), s);
    });
  }

  void prepare_exchange(const Messages& messages) override {
    watchdog_->prepare(kMaxMessages);
    for (const SendTo& m : messages.sends) sends_to_.insert(m.peer);
    for (const ReceiveFrom& m : messages.receives) receives_from_.insert(m.peer);
  }
  void prepare_reduction(int64_t bytes) override {
    watchdog_->prepare(kMaxMessages);
    scratch(bytes);
    reductions_.insert(bytes);
  }

  /// Makes NCCL connect the ranks. NCCL connects two ranks when they exchange their first message,
  /// and the ranks of a reduction when NCCL uses an algorithm for the first time. Therefore this
  /// function sends one byte to every peer and reduces zeros.
  void connect(Stream& stream) override {
    if (size() == 1) return;
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
    auto* at = static_cast<char*>(scratch(std::ssize(sends_to_) + std::ssize(receives_from_)));
    for (const int peer : sends_to_) sends.push_back({peer, at++, 1});
    for (const int peer : receives_from_) receives.push_back({peer, at++, 1});
    run("connect", std::ssize(sends) + std::ssize(receives), stream,
        [&](cudaStream_t s) { move(sends, receives, s); });
    for (const int64_t bytes : reductions_) {
      run("connect", options_.max_ctas, stream, [&](cudaStream_t s) {
        void* const zeros = scratch(bytes);
        MUONRT_CUDA(cudaMemsetAsync(zeros, 0, static_cast<size_t>(bytes), s));
        if (bytes % 8 == 0) all_reduce(zeros, zeros, bytes / 8, kNcclInt64, kNcclSum, s);
        all_reduce(zeros, zeros, bytes / 4, kNcclInt32, kNcclMax, s);
      });
    }
  }

  void clear_if_aborted(Stream& stream, int64_t* entered) override {
    const DeviceGuard guard(options_.device_index);
    const Mark mark(*last_, handle_of(stream));
    cuda::clear_if_closed(entered, shared_->closed(), handle_of(stream));
  }

  void allgather(const void* mine, void* all, int64_t bytes) override {
    bootstrap_->allgather(mine, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<NcclComm>(
        api_, [&] { return bootstrap_->duplicate(); }, options_,
        options_.borrow ? shared_ : nullptr);
  }
  void set_timeout_ms(int64_t ms) override { bootstrap_->set_timeout_ms(ms); }
  void abort(Status status, const std::string& message) noexcept override {
    try {
      link_->close(make_error(status, message));
    } catch (...) {  // no memory for the message
    }
  }
  std::optional<Error> error() const override { return link_->error(); }
  int64_t bytes_sent() const override { return bytes_sent_; }
  int64_t exchanges() const override { return exchanges_; }

 private:
  void begin(const std::shared_ptr<SharedNcclComm>& borrowed) {
    const NcclUniqueId id = agree_on_nccl_setup(*bootstrap_, [&] { return prepare(borrowed); });
    // Everything that can fail on a single rank must run before any rank waits inside NCCL.
    std::optional<DeviceGuard> guard;
    nccl_run_collectively(*bootstrap_, [&] {
      guard.emplace(options_.device_index);
      if (!shared_) shared_ = std::make_shared<SharedNcclComm>(options_.device_index);
      link_ = std::make_unique<NcclLink>(api_(), *bootstrap_, shared_);
      last_ = std::make_shared<CudaEvent>(options_.device_index);
      scratch(kFirstScratch);
      if (options_.borrow) start_watchdog();
    });
    if (!options_.borrow) make(id);
  }

  /// Checks the caller's communicator before any rank uses it. If a rank rejected it later, another
  /// rank could wait for that rank inside a blocking communicator.
  NcclSetup prepare(const std::shared_ptr<SharedNcclComm>& borrowed) {
    NcclSetup out;
    if (borrowed) borrowed->require_open();
    require_device(options_.device_index);
    const NcclApi& api = api_();
    const auto need = [&](NcclResult result, const char* call) {
      if (result != kNcclSuccess) throw nccl_error(api, nullptr, result, call);
    };
    need(api.get_version(&version_), "ncclGetVersion");
    out.nccl_version = version_;
    out.library_version = options_.library_version;
    out.max_ctas = options_.max_ctas;
    out.origin = !options_.from    ? NcclOrigin::kNew
                 : options_.borrow ? NcclOrigin::kBorrowed
                                   : NcclOrigin::kSplit;
    const auto from = static_cast<NcclHandle>(options_.from);
    if (from && options_.borrow)
      shared_ =
          borrowed ? borrowed : SharedNcclComm::for_borrowed_handle(from, options_.device_index);
    if (from && !borrowed) {
      std::unique_lock<std::timed_mutex> lock;
      // Waits for at most half the timeout. If the handle is in use, the other ranks then receive
      // the error before they time out.
      if (shared_) lock = shared_->enter(bootstrap_->timeout_ms() / 2);
      check_ranks(api, from, *bootstrap_, options_.device_index);
    }
    if (rank() == 0 && !options_.from) need(api.get_unique_id(&out.id), "ncclGetUniqueId");
    return out;
  }

  void make(const NcclUniqueId& id) {
    const bool may_block = options_.from != nullptr;
    try {
      nccl_run_with_alarm(*bootstrap_, may_block, [&](const Bootstrap& alarm) {
        link_->make(options_, id, alarm);
        start_watchdog();
      });
    } catch (const Error& error) {
      link_->discard_comm(error);
      throw;
    }
  }

  void start_watchdog() {
    watchdog_ = std::make_unique<NcclWatchdog>(
        options_.device_index, rank(),
        NcclWatchdog::Calls{[this] { return link_->poll_error(); },
                            [this] { return bootstrap_->timeout_ms(); },
                            [this](const Error& error) { link_->end(error); }});
  }

  Deadline deadline() const { return Deadline::in_ms(bootstrap_->timeout_ms()); }

  /// Runs one operation. An error ends the communicator on all ranks and is thrown.
  template <class Function>
  void run(const char* what, int64_t messages, Stream& stream, Function work) {
    const DeviceGuard guard(options_.device_index);
    refuse_captured(handle_of(stream), "nccl", "the stream",
                    "the communicator must check when each operation ends");
    try {
      shared_->require_open();
      // If another thread aborts, only the bootstrap reports the abort. The watchdog polls the
      // bootstrap only while operations are pending, and at this point there may be no pending
      // operations.
      if (const auto pending_error = bootstrap_->pending_error()) throw *pending_error;
      wait_for_capacity(messages);
      {
        const Mark mark(*last_, handle_of(stream));
        work(handle_of(stream));
      }
      watchdog_->add(handle_of(stream), what, messages);
    } catch (const Error& error) {
      link_->close(error);
      throw *link_->error();
    }
  }

  /// Waits until the next operation may be enqueued. NCCL passes network messages to its proxy
  /// thread through a pool of 1024 entries (2048 since 2.25), and each message takes several
  /// entries. If the proxy thread has failed, a call that finds the pool empty never returns, and
  /// an abort waits for this call. This function therefore limits the messages in flight, so that
  /// the pool does not become empty. The watchdog then has time to notice the error. The error also
  /// ends the wait in this function. Two operations are always allowed, because otherwise
  /// operations would not overlap. With 256 or more ranks, two operations may still use up the
  /// pool.
  void wait_for_capacity(int64_t messages) {
    const RelaxedCapture relaxed;
    for (Backoff pauses = nccl_backoff(); !watchdog_->has_capacity(messages, kMaxMessages);
         pauses.pause())
      shared_->require_open();
  }

  void check(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) {
    int64_t to_self = 0, from_self = 0, own_out = 0, own_in = 0;
    const auto inspect = [&](const auto& m, int64_t& own, int64_t& bytes) {
      MUONRT_REQUIRE(m.peer >= 0 && m.peer < size() && m.bytes > 0 && m.data,
                     Status::kInvalidArgument, "exchange on rank ", rank(),
                     " (nccl): a message with rank ", m.peer, " of ", size(), " ranks has ",
                     m.bytes, " bytes and the address ", static_cast<const void*>(m.data),
                     "; pass a valid rank and address, and omit empty messages on both ranks");
      if (m.peer != rank()) return;
      ++own;
      bytes = m.bytes;
    };
    for (const SendTo& s : sends) inspect(s, to_self, own_out);
    for (const ReceiveFrom& r : receives) inspect(r, from_self, own_in);
    MUONRT_REQUIRE(to_self == from_self && to_self <= 1 && own_out == own_in, Status::kMismatch,
                   "exchange on rank ", rank(), " (nccl): the rank sends ", own_out,
                   " bytes to itself, but expects ", own_in, "; pass the same size for both");
  }

  void move(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
            cudaStream_t stream) {
    if (sends.empty() && receives.empty()) return;
    link_->issue(
        "ncclGroupEnd",
        [&](const NcclApi& api, NcclHandle handle) {
          const NcclWatchdog::BlockingCallScope inside(*watchdog_, "exchange");
          return group(api, handle, sends, receives, stream);
        },
        deadline());
  }

  /// Always ends the group that it has started. The order of the calls, which determines the order
  /// of the messages between two ranks, is the same on both ranks.
  NcclResult group(const NcclApi& api, NcclHandle handle, std::span<const SendTo> sends,
                   std::span<const ReceiveFrom> receives, cudaStream_t stream) {
    NcclResult first = api.group_start();
    if (first != kNcclSuccess) return first;
    const auto note = [&](NcclResult result) {
      const bool good = result == kNcclSuccess || result == kNcclInProgress;
      if (!good && first == kNcclSuccess) first = result;
    };
    for (const SendTo& s : sends)
      note(api.send(s.data, static_cast<size_t>(s.bytes), kNcclInt8, s.peer, handle, stream));
    for (const ReceiveFrom& r : receives)
      note(api.receive(r.data, static_cast<size_t>(r.bytes), kNcclInt8, r.peer, handle, stream));
    const NcclResult last = api.group_end();
    return first == kNcclSuccess ? last : first;
  }

  void all_reduce(const void* in, void* out, int64_t n, NcclType type, NcclOp op,
                  cudaStream_t stream) {
    link_->issue(
        "ncclAllReduce",
        [&](const NcclApi& api, NcclHandle handle) {
          const NcclWatchdog::BlockingCallScope inside(*watchdog_, "reduction");
          return api.all_reduce(in, out, static_cast<size_t>(n), type, op, handle, stream);
        },
        deadline());
  }

  /// Returns device memory. Does not free smaller blocks from earlier calls, because earlier
  /// operations may still use them.
  void* scratch(int64_t bytes) {
    if (scratch_.empty() || scratch_.back()->bytes() < bytes) {
      scratch_.push_back(std::make_unique<CachedMemory>(options_.device_index,
                                                        round_up(bytes, kFirstScratch), false));
    }
    return scratch_.back()->data();
  }

  const NcclApi& (*const api_)();
  const NcclOptions options_;
  const std::unique_ptr<Bootstrap> bootstrap_;
  int version_ = 0;
  std::shared_ptr<SharedNcclComm> shared_;              // enqueued kernels read its flag
  std::vector<std::unique_ptr<CachedMemory>> scratch_;  // one stream uses these blocks, in order
  std::shared_ptr<CudaEvent> last_;  // recorded after all operations on the stream
  std::unique_ptr<NcclLink> link_;
  std::unique_ptr<NcclWatchdog> watchdog_;
  std::set<int> sends_to_, receives_from_;  // the peers of all prepared exchanges
  std::set<int64_t> reductions_;            // sizes of all prepared reductions, in bytes
  std::atomic<int64_t> bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(const NcclApi& (*api)(), std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options) {
  return std::make_unique<NcclComm>(
      api, [&] { return std::move(bootstrap); }, options, nullptr);
}

}  // namespace muonrt::cuda

namespace muonrt {

int nccl_version() {
  int version = 0;
  cuda::nccl_api().get_version(&version);
  return version;
}

std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options) {
  return cuda::make_nccl_comm(cuda::nccl_api, std::move(bootstrap), options);
}

}  // namespace muonrt
