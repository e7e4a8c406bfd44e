#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm75.cuh"
#include "cuda/symmetric/tensor_map.hpp"

namespace muonrt::cuda {

inline uint32_t cluster_rank() { return emulator::block_in_cluster(); }
inline void cluster_sync() { emulator::cluster_barrier(); }
inline void warpgroup_sync(int) { emulator::allgather(threadIdx.x / 128 * 128, 128, nullptr, 0); }
inline bool elect_one() { return threadIdx.x % 32 == 0; }
template <int>
void setmaxnreg_dec() {}
template <int>
void setmaxnreg_inc() {}

inline void griddepcontrol_wait() { emulator::griddepcontrol_wait(); }
inline void griddepcontrol_launch_dependents() {}
inline void prefetch_tensormap(const TensorMap&) {}

/// The content of the eight bytes of an mbarrier.
struct EmulatedBarrier {
  int32_t bytes;  // announced bytes that have not arrived
  uint8_t arrivals, pending, phase, made;

  void settle() {
    if (pending > 0 || bytes != 0) return;
    phase ^= 1;
    pending = arrivals;
  }
};
static_assert(sizeof(EmulatedBarrier) == sizeof(uint64_t));

inline EmulatedBarrier& emulated(uint64_t* barrier) {
  auto& b = *reinterpret_cast<EmulatedBarrier*>(barrier);
  if (b.made != 1) throw std::logic_error("the barrier is not initialized");
  return b;
}
/// Returns the address with the same offset in another block's shared memory.
template <class T>
T* in_block(T* here, uint32_t block) {
  return reinterpret_cast<T*>(emulator::shared_memory(block) + shared_address(here));
}

inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  const auto count = static_cast<uint8_t>(arrivals);
  const EmulatedBarrier made{0, count, count, 0, 1};
  std::memcpy(barrier, &made, sizeof made);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint64_t* barrier) {
  EmulatedBarrier& b = emulated(barrier);
  if (b.pending == 0) throw std::logic_error("too many arrivals at a barrier");
  --b.pending;
  b.settle();
}
inline void mbarrier_arrive_remote(uint64_t* barrier, uint32_t rank) {
  if (!emulator::block_runs(rank)) throw std::logic_error("an arrival at a block that has ended");
  mbarrier_arrive(in_block(barrier, rank));
}
inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  emulated(barrier).bytes += static_cast<int32_t>(bytes);
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  struct Wait {
    uint64_t* barrier;
    uint32_t parity;
  } wait{barrier, parity};
  emulator::wait_until(
      [](void* context) {
        const auto& w = *static_cast<Wait*>(context);
        return emulated(w.barrier).phase != w.parity;
      },
      &wait);
}

inline void store_four(float* to, const float* from) { std::memcpy(to, from, 4 * sizeof(float)); }
inline void load_four_of(float* to, const float* from, uint32_t rank) {
  if (!emulator::block_runs(rank)) throw std::logic_error("a load from a block that has ended");
  std::memcpy(to, in_block(from, rank), 4 * sizeof(float));
}

/// Applies the 128-byte swizzle of the copy engines and tensor cores, which is a function of the
/// address.
inline uint32_t swizzled_address(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

/// The words of the emulated tensor map are data, columns, rows, count, ld, stride, and the rows of
/// a box.
constexpr int kBoxCols = 64;
inline uint16_t* element_in(const TensorMap& map, int64_t col, int64_t row, int64_t matrix) {
  const auto inside = [&](int64_t at, int word) {
    return at >= 0 && at < static_cast<int64_t>(map.words[word]);
  };
  if (!inside(col, 1) || !inside(row, 2) || !inside(matrix, 3)) return nullptr;
  return reinterpret_cast<uint16_t*>(map.words[0]) + matrix * static_cast<int64_t>(map.words[5]) +
         row * static_cast<int64_t>(map.words[4]) + col;
}
/// Calls visit(element of the matrix, byte in shared memory, elements) for each chunk of a box.
/// Only the first `elements` elements of the chunk are inside the matrix. If there are none, the
/// pointer to the element is null.
template <class Visit>
void for_box(const TensorMap& map, uint32_t at, int col, int row, int matrix, const Visit& visit) {
  for (int r = 0; r < static_cast<int>(map.words[6]); ++r)
    for (int c = 0; c < kBoxCols; c += kChunk) {
      uint16_t* const element = element_in(map, col + c, row + r, matrix);
      const int64_t left = static_cast<int64_t>(map.words[1]) - (col + c);
      visit(element, swizzled_address(at + static_cast<uint32_t>(r * 128 + c * 2)),
            element ? static_cast<size_t>(std::min<int64_t>(left, kChunk)) : size_t{0});
    }
}

inline uint32_t bytes_of_box(const TensorMap& map) {
  return static_cast<uint32_t>(map.words[6]) * kBoxCols * 2;
}

inline void load_box(unsigned char* memory, uint32_t at, const TensorMap& map, int col, int row,
                     int matrix, uint64_t* barrier) {
  for_box(map, at, col, row, matrix, [&](const uint16_t* from, uint32_t to, size_t elements) {
    std::memset(memory + to, 0, 2 * kChunk);
    if (from) std::memcpy(memory + to, from, 2 * elements);
  });
  EmulatedBarrier& b = emulated(barrier);
  b.bytes -= static_cast<int32_t>(bytes_of_box(map));
  b.settle();
}
inline void bulk_load_into(uint32_t block, void* to, const TensorMap& map, int col, int row,
                           int matrix, uint64_t* barrier) {
  const uint32_t at = shared_address(to);
  emulator::require_predecessors();
  if (at % 1024 != 0)
    throw std::logic_error("the destination of a bulk copy is not aligned to the swizzle");
  // The map is copied, because the thread that started the copy may have ended.
  emulator::later([=, memory = emulator::shared_memory(block), counted = in_block(barrier, block)] {
    if (!emulator::block_runs(block))
      throw std::logic_error("a bulk copy into a block that has ended");
    unfenced(block).require_none(at, bytes_of_box(map));
    load_box(memory, at, map, col, row, matrix, counted);
  });
}
inline void tma_load(void* to, const TensorMap& map, int col, int row, int matrix,
                     uint64_t* barrier) {
  bulk_load_into(cluster_rank(), to, map, col, row, matrix, barrier);
}
inline void tma_load_multicast(void* to, const TensorMap& map, int col, int row, int matrix,
                               uint64_t* barrier, uint16_t blocks) {
  for (const uint32_t block : {0u, 1u})
    if (blocks >> block & 1u) bulk_load_into(block, to, map, col, row, matrix, barrier);
}

/// Returns the number of bulk stores of a thread that are in flight. The emulator delays their
/// reads of shared memory as long as possible. Like a GPU, the emulator writes whole chunks.
inline int& stores_in_flight() {
  static thread_local std::vector<int> of_thread(2048);
  return of_thread[emulator::thread_in_cluster()];
}
inline void tma_store(const TensorMap& map, int col, int row, int matrix, const void* from) {
  const uint32_t at = shared_address(from);
  emulator::require_predecessors();
  if (at % 1024 != 0)
    throw std::logic_error("the source of a bulk store is not aligned to the swizzle");
  unfenced(cluster_rank()).require_none(at, bytes_of_box(map));
  int& mine = stores_in_flight();
  ++mine;
  emulator::later([=, &map, &mine, memory = dynamic_shared()] {
    for_box(map, at, col, row, matrix, [&](uint16_t* to, uint32_t there, size_t) {
      if (to) std::memcpy(to, memory + there, 2 * kChunk);
    });
    --mine;
  });
}
inline void tma_store_commit() {}
inline void tma_store_wait_read() {
  emulator::wait_until([](void* count) { return *static_cast<int*>(count) == 0; },
                       &stores_in_flight());
}
inline void tma_store_wait() { tma_store_wait_read(); }
inline void fence_proxy_async() { unfenced(cluster_rank()).fence(threadIdx.x); }

/// Stores a warp's words in rows. Each lane of the warp passes the address of a row.
inline void store_eights(void* row, const uint32_t (&words)[4], bool transposed) {
  struct Contribution {
    unsigned char* row;
    uint32_t words[4];
  } mine{static_cast<unsigned char*>(row), {words[0], words[1], words[2], words[3]}};
  const auto* all = reinterpret_cast<const Contribution*>(
      emulator::allgather(threadIdx.x / 32 * 32, 32, &mine, sizeof mine));
  const unsigned lane = threadIdx.x % 32;
  // In each matrix, this lane holds the elements of row lane / 4 in column 2 (lane % 4) and in the
  // next column.
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned r = lane / 4, c = 2 * (lane % 4) + e;
      const auto value = static_cast<uint16_t>(words[i] >> (16 * e));
      std::memcpy(all[8 * i + (transposed ? c : r)].row + 2 * (transposed ? r : c), &value, 2);
    }
  touch_shared(row);
}
inline void stmatrix(void* row, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  store_eights(row, {w0, w1, w2, w3}, false);
}
inline void stmatrix_trans(void* row, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  store_eights(row, {w0, w1, w2, w3}, true);
}

}  // namespace muonrt::cuda
