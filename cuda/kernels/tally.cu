// Computes exact tallies of matrices and hashes of memory. The formulas are in backend/health.hpp,
// which also defines the limbs of a tally. Each thread keeps the limbs that it last added to in
// registers. A thread seldom has to change to other limbs, because elements of one matrix have
// similar magnitudes. At the end, the threads of a warp add their limbs, the warps add theirs in
// shared memory, and each thread block adds its limbs to the result once. Matrices are rows x cols
// with any ld. A batch takes one launch.

#include "backend/health.hpp"
#include "backend/weight_bits.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/kernels/elements.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

namespace {

struct TallyArguments {
  MatrixBatch x;
  const uint16_t* low;
  Tally* tallies;
};

__device__ inline void add_to(int64_t* sum, int64_t value) {
  if (value != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

/// The largest value is a 32-bit number in a 64-bit field, so updating the lower half suffices.
__device__ inline void raise(int64_t* largest, uint32_t value) {
  static_assert(std::endian::native == std::endian::little);
  if (value != 0) atomicMax(reinterpret_cast<unsigned*>(largest), value);
}

/// A thread's sums of four neighboring limbs. The lowest bit of each square is in one of the first
/// two limbs, so magnitudes on both sides of a limb's boundary can stay in registers.
struct ThreadSums {
  Tally* block;
  int32_t limb = 0;
  int64_t sums[4] = {};
  int64_t nonfinite = 0;
  uint32_t largest = 0;

  __device__ void flush() {
    for (int i = 0; i < 4; ++i) {
      if (limb + i < kTallyLimbs) add_to(block->limbs + limb + i, sums[i]);
      sums[i] = 0;
    }
  }
  __device__ void add(float x) {
    const uint32_t size = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    if (size == 0) return;
    largest = size > largest ? size : largest;
    if (size >= 0x7f800000u) {
      ++nonfinite;
      return;
    }
    const LimbTerm term = limb_term(x);
    int32_t place = term.limb - limb;
    if (place < 0 || place > 1) {
      flush();
      limb = place > 1 ? term.limb - 1 : term.limb;
      place = place > 1 ? 1 : 0;
    }
    sums[0] += place ? 0 : term.low;
    sums[1] += place ? term.low : term.middle;
    sums[2] += place ? term.middle : term.high;
    sums[3] += place ? term.high : 0;
  }
  /// Adds the sums to the result. All threads of the thread block must call this function.
  __device__ void finish() {
    if (same_limb()) {
      for (int64_t& sum : sums) sum = of_warp(sum);
      nonfinite = of_warp(nonfinite);
      for (int apart = 16; apart > 0; apart /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, apart);
        largest = other > largest ? other : largest;
      }
      if (threadIdx.x % 32 != 0) return;
    }
    flush();
    add_to(&block->nonfinite, nonfinite);
    raise(&block->largest, largest);
  }

 private:
  /// Returns whether all threads of the warp have sums of the same limbs.
  __device__ bool same_limb() const {
    auto least = static_cast<uint32_t>(limb), most = least;
    for (int apart = 16; apart > 0; apart /= 2) {
      const uint32_t low = __shfl_xor_sync(0xffffffffu, least, apart);
      const uint32_t high = __shfl_xor_sync(0xffffffffu, most, apart);
      least = low < least ? low : least;
      most = high > most ? high : most;
    }
    return least == most;
  }
  __device__ static int64_t of_warp(int64_t sum) {
    for (int apart = 16; apart > 0; apart /= 2) {
      const auto mine = static_cast<uint64_t>(sum);
      const uint64_t low = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(mine), apart);
      const uint64_t high = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(mine >> 32), apart);
      sum = static_cast<int64_t>(mine + (high << 32 | low));
    }
    return sum;
  }
};

__global__ void __launch_bounds__(kThreads) tally_kernel(TallyArguments a) {
  __shared__ Tally block;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t matrix = blockIdx.y; matrix < a.x.count; matrix += gridDim.y) {
    if (thread == 0) block = Tally{};
    __syncthreads();
    ThreadSums sums{&block};
    const int64_t step = int64_t{gridDim.x} * kThreads;
    const int64_t down = step / a.x.cols, across = step % a.x.cols;
    const int64_t begin = int64_t{blockIdx.x} * kThreads + thread;
    int64_t row = begin / a.x.cols, col = begin % a.x.cols;
    while (row < a.x.rows) {
      const int64_t at = matrix * a.x.stride + row * a.x.ld + col;
      const Raw<1> raw = load<1>(a.x.data, a.x.dtype, at);
      sums.add(a.low ? join_weight(static_cast<uint16_t>(raw.bits), a.low[at])
                     : widen(raw, a.x.dtype).x[0]);
      row += down;
      col += across;
      if (col >= a.x.cols) {
        col -= a.x.cols;
        ++row;
      }
    }
    sums.finish();
    __syncthreads();
    Tally& out = a.tallies[matrix];
    if (thread < kTallyLimbs) add_to(out.limbs + thread, block.limbs[thread]);
    if (thread == 0) {
      add_to(&out.nonfinite, block.nonfinite);
      raise(&out.largest, static_cast<uint32_t>(block.largest));
    }
    __syncthreads();
  }
}

struct HashArguments {
  const unsigned char* memory;
  int64_t bytes;
  uint64_t* sum;
};

__device__ inline uint32_t word_at(const HashArguments& a, int64_t index) {
  const int64_t at = 4 * index;
  if (reinterpret_cast<uintptr_t>(a.memory) % 4 == 0 && at + 4 <= a.bytes)
    return reinterpret_cast<const uint32_t*>(a.memory)[index];
  uint32_t word = 0;
  for (int64_t i = 0; i < 4 && at + i < a.bytes; ++i)
    word |= static_cast<uint32_t>(a.memory[at + i]) << 8 * i;
  return word;
}

__global__ void __launch_bounds__(kThreads) hash_kernel(HashArguments a) {
  __shared__ int64_t block;
  if (threadIdx.x == 0) block = 0;
  __syncthreads();
  uint64_t mine = 0;
  const int64_t words = (a.bytes + 3) / 4, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += step)
    mine += hash_term(word_at(a, i), i);
  add_to(&block, static_cast<int64_t>(mine));
  __syncthreads();
  if (threadIdx.x == 0) add_to(reinterpret_cast<int64_t*>(a.sum), block);
}

/// Returns the number of thread blocks to use for this many elements. Each thread gets several
/// elements.
int64_t blocks_for(int64_t elements, int64_t most) {
  constexpr int64_t kEach = 16;
  const int64_t blocks = (elements + kThreads * kEach - 1) / (kThreads * kEach);
  return blocks < most ? blocks : most;
}

}  // namespace

void load_tallies() {
  load("tally", tally_kernel);
  load("hash_memory", hash_kernel);
}

void tally(const MatrixBatch& x, const uint16_t* low, Tally* tallies, int blocks,
           cudaStream_t stream) {
  const int64_t deep = grid_depth(x.count);
  launch("tally", tally_kernel, grid_of(blocks_for(x.rows * x.cols, blocks), deep), kThreads,
         TallyArguments{x, low, tallies}, stream);
}

void hash_memory(const void* memory, int64_t bytes, uint64_t* sum, int blocks,
                 cudaStream_t stream) {
  launch("hash_memory", hash_kernel, grid_of(blocks_for((bytes + 3) / 4, blocks)), kThreads,
         HashArguments{static_cast<const unsigned char*>(memory), bytes, sum}, stream);
}

}  // namespace muonrt::cuda
