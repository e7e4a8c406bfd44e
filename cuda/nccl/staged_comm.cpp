#include <algorithm>
#include <atomic>
#include <chrono>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/cuda_comm.hpp"
#include "base/backoff.hpp"
#include "base/checked.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/cuda_graph.hpp"
#include "cuda/device/raw_memory.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/nccl/nccl_setup.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kStagingUnit = 4096;
constexpr int64_t kCopyGraceMs = 5000;

/// Sends messages over a bootstrap: through pinned host memory or, if the ranks are threads of this
/// process, directly from GPU to GPU. In each operation, the enqueuing thread blocks until the
/// earlier work of the stream has ended. Then it exchanges the messages, and enqueues the copies to
/// the device unless the messages were copied directly. Work on other streams, such as products,
/// continues to run. All ranks enqueue their operations in the same order, so they cannot block
/// each other. If there is only one rank, an operation only enqueues copies. After an abort, a
/// reduction of this rank copies nothing, so no vote passes.
class StagedComm final : public Comm {
 public:
  StagedComm(MakeBootstrap bootstrap, int device)
      : bootstrap_(bootstrap()),
        device_(device),
        direct_(bootstrap_->receivers_copy()),
        copy_message_(
            [this](void* to, const void* from, int64_t bytes) { copy_message(to, from, bytes); }) {
    nccl_create_or_abort(*bootstrap_, [&] {
      nccl_run_collectively(*bootstrap_, [&] {
        require_device(device_);
        ready_ = std::make_unique<CudaEvent>(device_);
        closed_ = std::make_unique<RawMemory>(device_, sizeof(int32_t), true);
        *closed_->as<int32_t>() = 0;
      });
    });
  }

  int rank() const override { return bootstrap_->rank(); }
  int size() const override { return bootstrap_->size(); }
  std::string describe() const override {
    return cat(direct_ ? "direct over " : "staged over ", bootstrap_->describe());
  }
  StreamKind stream_kind() const override { return StreamKind::kComm; }
  bool serves(const Device& device) const override {
    const auto* const mine = dynamic_cast<const CudaDevice*>(&device);
    return mine && mine->index() == device_;
  }

  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override {
    run(stream, [&](cudaStream_t s) {
      const Own own = keep_remote(sends, receives);
      if (size() == 1 && sends_.empty() && receives_.empty()) {
        throw_pending_error();
      } else if (direct_) {
        stream_ = s;
        wait(s, WaitMode::kEndOnPeerError);
        bootstrap_->exchange(sends_, receives_, &copy_message_);
      } else {
        exchange_staged(s);
      }
      if (own.bytes > 0) copy(own.to, own.from, own.bytes, s);
      for (const SendTo& m : sends) bytes_sent_ += m.peer == rank() ? 0 : m.bytes;
      ++exchanges_;
    });
  }

  void reduce_max(Stream& stream, const float* in, float* out, int64_t n) override {
    reduce(stream, in, out, n, [this](const float* a, float* b, int64_t count) {
      bootstrap_->reduce_max(a, b, count);
    });
  }
  void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    reduce(stream, in, out, n, [this](const int64_t* a, int64_t* b, int64_t count) {
      bootstrap_->reduce_sum(a, b, count);
    });
  }

  void clear_if_aborted(Stream& stream, int64_t* entered) override {
    if (size() > 1) {
      entered_ = entered;
      return;
    }
    const DeviceGuard guard(device_);
    clear_if_closed(entered, closed_->as<int32_t>(), handle_of(stream));
  }

  void prepare_exchange(const Messages& messages) override {
    keep_remote(messages.sends, messages.receives);
    if (!direct_) reserve(staged_bytes());
  }
  void prepare_reduction(int64_t bytes) override { reserve(2 * round_up(bytes, kMemoryAlignment)); }

  void allgather(const void* mine, void* all, int64_t bytes) override {
    bootstrap_->allgather(mine, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<StagedComm>([&] { return bootstrap_->duplicate(); }, device_);
  }
  void set_timeout_ms(int64_t ms) override { bootstrap_->set_timeout_ms(ms); }
  void abort(Status status, const std::string& message) noexcept override {
    std::atomic_ref(*closed_->as<int32_t>()).store(1, std::memory_order_seq_cst);
    bootstrap_->abort(make_error(status, message));
  }
  int64_t bytes_sent() const override { return bytes_sent_; }
  int64_t exchanges() const override { return exchanges_; }

 private:
  enum class WaitMode { kEndOnPeerError, kIgnorePeerErrors };
  struct Own {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };

  /// Errors: errors of the bootstrap, which has already published them; errors of the device, which
  /// this function publishes.
  template <class Function>
  void run(Stream& stream, Function work) {
    const DeviceGuard guard(device_);
    refuse_captured(handle_of(stream), "staged", "the stream",
                    "the host sends the messages, which a graph cannot replay");
    try {
      work(handle_of(stream));
    } catch (const Error& error) {
      bootstrap_->abort(error);
      throw;
    }
  }

  /// Sets sends_ and receives_ to the messages that are exchanged with other ranks. If this rank's
  /// messages to itself are invalid, they stay in the lists. The transport then rejects them before
  /// it reads any bytes.
  Own keep_remote(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) {
    const auto is_own = [this](const auto& m) { return m.peer == rank(); };
    const auto out = std::find_if(sends.begin(), sends.end(), is_own);
    const auto in = std::find_if(receives.begin(), receives.end(), is_own);
    const bool is_pair = std::count_if(sends.begin(), sends.end(), is_own) == 1 &&
                         std::count_if(receives.begin(), receives.end(), is_own) == 1 &&
                         out->bytes == in->bytes && out->bytes > 0 && out->data && in->data;
    const auto keep = [&](const auto& all, auto& kept) {
      kept.clear();
      for (const auto& m : all)
        if (!is_pair || !is_own(m)) kept.push_back(m);
    };
    keep(sends, sends_);
    keep(receives, receives_);
    return is_pair ? Own{in->data, out->data, out->bytes} : Own{};
  }

  void exchange_staged(cudaStream_t stream) {
    char* at = reserve(staged_bytes());
    for (SendTo& m : sends_) {
      copy(at, m.data, m.bytes, stream);
      m.data = at;
      at += round_up(m.bytes, kMemoryAlignment);
    }
    staged_receives_ = receives_;
    for (ReceiveFrom& m : staged_receives_) {
      m.data = at;
      at += round_up(m.bytes, kMemoryAlignment);
    }
    wait(stream, WaitMode::kEndOnPeerError);
    bootstrap_->exchange(sends_, staged_receives_);
    for (size_t i = 0; i < staged_receives_.size(); ++i)
      copy(receives_[i].data, staged_receives_[i].data, staged_receives_[i].bytes, stream);
  }

  /// Copies from another GPU with cudaMemcpyPeerAsync, because this function does not require that
  /// GPU's memory to be mapped.
  void copy_message(void* to, const void* from, int64_t bytes) {
    cudaPointerAttributes at = {};
    MUONRT_CUDA(cudaPointerGetAttributes(&at, from));
    if (at.type == cudaMemoryTypeDevice && at.device != device_) {
      MUONRT_CUDA(
          cudaMemcpyPeerAsync(to, device_, from, at.device, static_cast<size_t>(bytes), stream_));
    } else {
      copy(to, from, bytes, stream_);
    }
    wait(stream_, WaitMode::kIgnorePeerErrors);
  }

  void throw_pending_error() const {
    if (const auto pending_error = bootstrap_->pending_error()) throw *pending_error;
  }

  template <class T, class Reduce>
  void reduce(Stream& stream, const T* in, T* out, int64_t n, Reduce reduction) {
    run(stream, [&](cudaStream_t s) {
      const int64_t bytes = checked_mul(n, sizeof(T));
      if (size() == 1) {
        throw_pending_error();
        if constexpr (std::is_same_v<T, int64_t>)
          return copy_unless_closed(in, out, n, closed_->as<int32_t>(), s);
        return copy_by_kernel(out, in, bytes, s);
      }
      char* const at = reserve(2 * round_up(bytes, kMemoryAlignment));
      T* const result = reinterpret_cast<T*>(at + round_up(bytes, kMemoryAlignment));
      copy(at, in, bytes, s);
      wait_to_enter(s);
      reduction(reinterpret_cast<const T*>(at), result, n);
      copy(out, result, bytes, s);
    });
  }

  void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    MUONRT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  }

  /// Blocks until the stream has run all work that is enqueued so far. Use kIgnorePeerErrors if the
  /// enqueued work uses a peer's memory, which the peer must not free before the work ends. In this
  /// mode, errors that peers have published are ignored, and the timeout is longer. Errors:
  /// TIMEOUT; an error that a peer has published.
  void wait(cudaStream_t stream, WaitMode mode) {
    MUONRT_CUDA(cudaEventRecord(ready_->handle(), stream));
    const Deadline deadline = Deadline::in_ms(
        bootstrap_->timeout_ms() + (mode == WaitMode::kEndOnPeerError ? 0 : kCopyGraceMs));
    const RelaxedCapture relaxed;
    using std::chrono::microseconds;
    for (Backoff pauses(microseconds(200), microseconds(20), microseconds(20));; pauses.pause()) {
      const cudaError_t result = cudaEventQuery(ready_->handle());
      if (result == cudaSuccess) return;
      if (result != cudaErrorNotReady) check(result, "cudaEventQuery", __func__, __LINE__);
      cudaGetLastError();
      if (mode == WaitMode::kEndOnPeerError) throw_pending_error();
      MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "work on CUDA device ", device_,
                     mode == WaitMode::kEndOnPeerError ? " before an exchange" : " for a message",
                     " did not end before the timeout; raise the timeout");
    }
  }

  /// Waits before a reduction. If the wait fails, this rank does not take part in the reduction,
  /// and the stream clears the flag that the caller passed to clear_if_aborted.
  void wait_to_enter(cudaStream_t stream) {
    int64_t* const entered = std::exchange(entered_, nullptr);
    try {
      wait(stream, WaitMode::kEndOnPeerError);
      throw_pending_error();
    } catch (...) {
      constexpr int64_t kNotEntered = 0;
      try {
        if (entered) write_inline(entered, &kNotEntered, sizeof kNotEntered, stream);
      } catch (const Error&) {  // ignored, because the first error is thrown
      }
      throw;
    }
  }

  int64_t staged_bytes() const {
    int64_t total = 0;
    for (const SendTo& m : sends_) total += round_up(m.bytes, kMemoryAlignment);
    for (const ReceiveFrom& m : receives_) total += round_up(m.bytes, kMemoryAlignment);
    return total;
  }

  /// Returns pinned memory. One stream uses this memory in order, so an operation copies data into
  /// it only after the previous operation has copied its data out. The rank receives messages only
  /// after all these copies have ended. Blocks that have become too small are not freed.
  char* reserve(int64_t bytes) {
    if (staging_.empty() || staging_.back()->bytes() < bytes) {
      staging_.push_back(std::make_unique<RawMemory>(
          device_, std::max(round_up(bytes, kStagingUnit), kStagingUnit), true));
    }
    return staging_.back()->as<char>();
  }

  const std::unique_ptr<Bootstrap> bootstrap_;
  const int device_;
  const bool direct_;  // copy messages from the sender's memory, without staging
  const CopyMessage copy_message_;
  cudaStream_t stream_ = nullptr;  // stream of the current exchange
  int64_t* entered_ = nullptr;     // flag that a failed reduction clears
  std::unique_ptr<CudaEvent> ready_;
  std::unique_ptr<RawMemory> closed_;  // set by an abort; the GPU reads it if there is one rank
  std::vector<std::unique_ptr<RawMemory>> staging_;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_, staged_receives_;
  std::atomic<int64_t> bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace

}  // namespace muonrt::cuda

namespace muonrt {

std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap> bootstrap, int device_index) {
  return std::make_unique<cuda::StagedComm>([&] { return std::move(bootstrap); }, device_index);
}

}  // namespace muonrt
