#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "backend/cuda_comm.hpp"
#include "base/checked.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/graphs.hpp"
#include "cuda/nccl_meeting.hpp"
#include "cuda/raw_memory.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kStagingUnit = 4096;

/// Messages go by pinned host memory and a bootstrap. An operation takes its place in the stream:
/// the enqueuing thread waits until what comes before it there has run, exchanges, and enqueues the
/// copies back. Products enqueued before it go on meanwhile; the order of operations is that of the
/// enqueuing, so ranks cannot block one another.
class StagedComm final : public Comm {
 public:
  StagedComm(std::unique_ptr<Bootstrap> bootstrap, int device)
      : bootstrap_(std::move(bootstrap)), device_(device) {
    nccl_together(*bootstrap_, [&] {
      require_device(device_);
      ready_ = std::make_unique<CudaEvent>(device_);
    });
  }

  int rank() const override { return bootstrap_->rank(); }
  int size() const override { return bootstrap_->size(); }
  std::string describe() const override { return cat("staged over ", bootstrap_->describe()); }
  StreamKind stream_kind() const override { return StreamKind::kComm; }
  bool serves(const Device& device) const override {
    const auto* const mine = dynamic_cast<const CudaDevice*>(&device);
    return mine && mine->index() == device_;
  }

  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override {
    run(stream, [&](cudaStream_t s) {
      char* at = reserve(staged_bytes({sends, receives}));
      sends_.assign(sends.begin(), sends.end());
      receives_.assign(receives.begin(), receives.end());
      for (SendTo& m : sends_) {
        copy(at, m.data, m.bytes, s);
        bytes_sent_ += m.peer == rank() ? 0 : m.bytes;
        m.data = at;
        at += round_up(m.bytes, kMemoryAlignment);
      }
      for (ReceiveFrom& m : receives_) {
        m.data = at;
        at += round_up(m.bytes, kMemoryAlignment);
      }
      wait(s);
      bootstrap_->exchange(sends_, receives_);
      for (size_t i = 0; i < receives_.size(); ++i)
        copy(receives[i].data, receives_[i].data, receives_[i].bytes, s);
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

  void prepare_exchange(const Messages& messages) override { reserve(staged_bytes(messages)); }
  void prepare_reduction(int64_t bytes) override { reserve(2 * round_up(bytes, kMemoryAlignment)); }

  void allgather(const void* mine, void* all, int64_t bytes) override {
    bootstrap_->allgather(mine, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<StagedComm>(bootstrap_->duplicate(), device_);
  }
  void set_timeout_ms(int64_t ms) override { bootstrap_->set_timeout_ms(ms); }
  void abort(Status status, const std::string& message) noexcept override {
    bootstrap_->abort(status, message);
  }
  int64_t bytes_sent() const override { return bytes_sent_; }
  int64_t exchanges() const override { return exchanges_; }

 private:
  /// Errors: what the bootstrap throws, which it has told the peers; those of the device, which are
  /// told here.
  template <class Work>
  void run(Stream& stream, Work work) {
    const DeviceGuard guard(device_);
    refuse_captured(handle_of(stream), "staged: the stream",
                    "the host moves the messages and cannot be replayed");
    try {
      work(handle_of(stream));
    } catch (const Error& error) {
      bootstrap_->abort(error.status(), error.message());
      throw;
    }
  }

  template <class T, class Reduce>
  void reduce(Stream& stream, const T* in, T* out, int64_t n, Reduce reduction) {
    run(stream, [&](cudaStream_t s) {
      const int64_t bytes = checked_mul(n, sizeof(T));
      char* const at = reserve(2 * round_up(bytes, kMemoryAlignment));
      T* const result = reinterpret_cast<T*>(at + round_up(bytes, kMemoryAlignment));
      copy(at, in, bytes, s);
      wait(s);
      reduction(reinterpret_cast<const T*>(at), result, n);
      copy(out, result, bytes, s);
    });
  }

  void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    MUONRT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  }

  /// Until the stream has run to here. Errors: what a peer has published; TIMEOUT.
  void wait(cudaStream_t stream) {
    MUONRT_CUDA(cudaEventRecord(ready_->handle(), stream));
    const Deadline deadline = Deadline::in_ms(bootstrap_->timeout_ms());
    const RelaxedCapture relaxed;
    for (int turn = 0;; ++turn) {
      const cudaError_t result = cudaEventQuery(ready_->handle());
      if (result == cudaSuccess) return;
      if (result != cudaErrorNotReady) check(result, "cudaEventQuery", __func__, __LINE__);
      cudaGetLastError();
      if (const auto trouble = bootstrap_->trouble()) throw *trouble;
      MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "work on CUDA device ", device_,
                     " before an exchange did not end before the deadline; raise the timeout");
      if (turn < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }

  static int64_t staged_bytes(const Messages& messages) {
    int64_t total = 0;
    for (const SendTo& m : messages.sends) total += round_up(m.bytes, kMemoryAlignment);
    for (const ReceiveFrom& m : messages.receives) total += round_up(m.bytes, kMemoryAlignment);
    return total;
  }

  /// Pinned memory. One stream uses it, in order: copies out come after the copies back of the
  /// operation before, and the messages arrive when both have ended. What was too small stays.
  char* reserve(int64_t bytes) {
    if (staging_.empty() || staging_.back()->bytes() < bytes) {
      staging_.push_back(std::make_unique<RawMemory>(
          device_, std::max(round_up(bytes, kStagingUnit), kStagingUnit), true));
    }
    return staging_.back()->as<char>();
  }

  const std::unique_ptr<Bootstrap> bootstrap_;
  const int device_;
  std::unique_ptr<CudaEvent> ready_;
  std::vector<std::unique_ptr<RawMemory>> staging_;
  std::vector<SendTo> sends_;
  std::vector<ReceiveFrom> receives_;
  std::atomic<int64_t> bytes_sent_ = 0, exchanges_ = 0;
};

}  // namespace

}  // namespace muonrt::cuda

namespace muonrt {

std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap> bootstrap, int device_index) {
  return std::make_unique<cuda::StagedComm>(std::move(bootstrap), device_index);
}

}  // namespace muonrt
