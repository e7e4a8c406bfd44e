// Functions for copies that the CUDA runtime would make synchronously: between two addresses in
// host memory, and from pageable host memory. Use these functions only for small sizes.

#include <cstring>

#include "cuda/device/launch.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct CopyArguments {
  unsigned char* to;
  const unsigned char* from;
  int64_t bytes;
};

__global__ void __launch_bounds__(kThreads) copy_kernel(CopyArguments a) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto addresses = reinterpret_cast<uintptr_t>(a.to) | reinterpret_cast<uintptr_t>(a.from);
  const int64_t words = addresses % 8 == 0 ? a.bytes / 8 : 0;
  for (int64_t i = thread; i < words; i += threads)
    reinterpret_cast<uint64_t*>(a.to)[i] = reinterpret_cast<const uint64_t*>(a.from)[i];
  for (int64_t i = words * 8 + thread; i < a.bytes; i += threads) a.to[i] = a.from[i];
}

struct InlineBytes {
  unsigned char* to;
  int64_t bytes;
  unsigned char value[kInlineBytes];
};

__global__ void __launch_bounds__(kInlineBytes) inline_kernel(InlineBytes a) {
  if (threadIdx.x < a.bytes) a.to[threadIdx.x] = a.value[threadIdx.x];
}

}  // namespace

void copy_by_kernel(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  constexpr int64_t kBlockBytes = int64_t{kThreads} * 8 * 4, kMaxBlocks = 1024;
  const int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  launch("copy_by_kernel", copy_kernel, grid_of(blocks < kMaxBlocks ? blocks : kMaxBlocks),
         kThreads,
         CopyArguments{static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                       bytes},
         stream);
}

void write_inline(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  InlineBytes bytes_here = {};
  bytes_here.to = static_cast<unsigned char*>(to);
  bytes_here.bytes = bytes;
  std::memcpy(bytes_here.value, from, static_cast<size_t>(bytes));
  launch("write_inline", inline_kernel, grid_of(1), static_cast<int>(kInlineBytes), bytes_here,
         stream);
}

}  // namespace muonrt::cuda
