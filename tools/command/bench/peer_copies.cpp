#include "command/bench/peer_copies.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::tool {

using namespace cuda;

namespace {

/// The receive buffer of a rank.
struct PeerBuffer {
  uint64_t process;  // a random number, which only ranks of the same process share
  void* memory;      // valid in this process
  cudaIpcMemHandle_t handle;
};

uint64_t process_number() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

int64_t sum_of_first(const std::vector<int64_t>& list, size_t count) {
  return std::accumulate(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count),
                         int64_t{0});
}

/// Runs `work` on this rank. If it fails on any rank, throws this rank's error or, if there is
/// none, an error that names a rank on which it failed. Collective.
template <class Work>
void on_all(Comm& comm, const Work& work) {
  std::optional<Error> error;
  try {
    work();
  } catch (const Error& e) {
    error = e;
  }
  const char failed = error ? 1 : 0;
  std::vector<char> all(static_cast<size_t>(comm.size()));
  comm.allgather(&failed, all.data(), 1);
  if (error) throw Error(*error);
  const auto at = std::find(all.begin(), all.end(), 1);
  if (at != all.end())
    throw Error(Status::kDevice, cat("rank ", at - all.begin(),
                                     " cannot use CUDA IPC with the other ranks (CUDA IPC "
                                     "needs ranks on one machine); use --reference copy"));
}

class CudaPeerCopies final : public PeerCopies {
 public:
  CudaPeerCopies(Comm& comm, int gpu, const void* out, void* in, const ExchangeSizes& sizes)
      : gpu_(gpu) {
    PeerBuffer mine{process_number(), in, {}};
    on_all(comm, [&] {
      const DeviceGuard guard(gpu_);
      MUONRT_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0));
      if (in) MUONRT_CUDA(cudaIpcGetMemHandle(&mine.handle, in));
    });
    std::vector<PeerBuffer> all(sizes.size());
    comm.allgather(&mine, all.data(), sizeof mine);
    on_all(comm, [&] {
      const DeviceGuard guard(gpu_);
      const auto me = static_cast<size_t>(comm.rank());
      for (size_t to = 0; to < sizes.size(); ++to) {
        const int64_t bytes = sizes[me][to];
        if (bytes == 0) continue;
        int64_t at = 0;  // the receiver stores messages in the order of their senders
        for (size_t from = 0; from < me; ++from) at += sizes[from][to];
        targets_.push_back(static_cast<char*>(open(all[to])) + at);
        sources_.push_back(static_cast<const char*>(out) + sum_of_first(sizes[me], to));
        sizes_.push_back(static_cast<size_t>(bytes));
      }
    });
  }
  ~CudaPeerCopies() override {
    const QuietDeviceGuard guard(gpu_);
    for (void* const memory : opened_) cudaIpcCloseMemHandle(memory);
    if (stream_) cudaStreamDestroy(stream_);
  }

  double run() override {
    const DeviceGuard guard(gpu_);
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    MUONRT_CUDA(cudaStreamSynchronize(stream_));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }

 private:
  void* open(const PeerBuffer& peer) {
    if (peer.process == process_number()) return peer.memory;
    void* memory = nullptr;
    MUONRT_CUDA(cudaIpcOpenMemHandle(&memory, peer.handle, cudaIpcMemLazyEnablePeerAccess));
    opened_.push_back(memory);
    return memory;
  }

  /// Without the hint, the driver may use a kernel for a copy within a GPU, and the kernel would
  /// need SMs.
  void enqueue() {
#if CUDART_VERSION >= 13000
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
    if (!sizes_.empty())
      MUONRT_CUDA(cudaMemcpyBatchAsync(targets_.data(), sources_.data(), sizes_.data(),
                                       sizes_.size(), &attributes, &first, 1, stream_));
#else
    for (size_t i = 0; i < sizes_.size(); ++i)
      MUONRT_CUDA(cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], cudaMemcpyDefault, stream_));
#endif
  }

  int gpu_;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> targets_, opened_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

}  // namespace

std::unique_ptr<PeerCopies> PeerCopies::of(Comm& comm, int gpu, const void* out, void* in,
                                           const ExchangeSizes& sizes) {
  return std::make_unique<CudaPeerCopies>(comm, gpu, out, in, sizes);
}

}  // namespace muonrt::tool
