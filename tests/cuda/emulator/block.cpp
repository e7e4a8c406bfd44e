#include "block.hpp"

#include <ucontext.h>

#include <bit>
#include <memory>
#include <stdexcept>
#include <vector>

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulator {

namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kWarp = 32;

enum class State { kReady, kAtBarrier, kAtShuffle, kDone };

/// One thread of the block, with a stack of its own.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  State state = State::kReady;
  unsigned given = 0, taken = 0;  // what it brings to a meeting, and what it takes away
  unsigned delta = 0;             // of a shuffle
};

struct Block {
  ucontext_t scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;  // reused from block to block
  size_t size = 0, current = 0;
  const std::function<void()>* thread = nullptr;
};

thread_local Block block;

void start() {
  (*block.thread)();
  block.fibers[block.current]->state = State::kDone;
  swapcontext(&block.fibers[block.current]->context, &block.scheduler);
}

/// The running thread stops in `state` until all that must meet have come.
unsigned meet(State state, unsigned given, unsigned delta) {
  Fiber& me = *block.fibers[block.current];
  me.state = state;
  me.given = given;
  me.delta = delta;
  swapcontext(&me.context, &block.scheduler);
  return me.taken;
}

void resume(size_t index) {
  block.current = index;
  threadIdx.x = static_cast<unsigned>(index);
  swapcontext(&block.scheduler, &block.fibers[index]->context);
}

bool all_in(size_t begin, size_t end, State state) {
  for (size_t i = begin; i < end; ++i)
    if (block.fibers[i]->state != state) return false;
  return true;
}

/// A barrier opens when every thread that has not ended is there.
bool open_barrier() {
  unsigned any = 0;
  bool waits = false;
  for (size_t i = 0; i < block.size; ++i) {
    const Fiber& f = *block.fibers[i];
    if (f.state == State::kDone) continue;
    if (f.state != State::kAtBarrier) return false;
    waits = true;
    any |= f.given;
  }
  for (size_t i = 0; i < block.size; ++i) {
    Fiber& f = *block.fibers[i];
    if (f.state != State::kAtBarrier) continue;
    f.taken = any;
    f.state = State::kReady;
  }
  return waits;
}

/// A shuffle needs the whole warp.
bool open_shuffle(size_t begin) {
  const size_t end = begin + kWarp;
  if (end > block.size || !all_in(begin, end, State::kAtShuffle)) return false;
  for (size_t i = begin; i < end; ++i) {
    Fiber& f = *block.fibers[i];
    const size_t from = i + f.delta;
    f.taken = block.fibers[from < end ? from : i]->given;
  }
  for (size_t i = begin; i < end; ++i) block.fibers[i]->state = State::kReady;
  return true;
}

}  // namespace

void run_block(const std::function<void()>& thread, uint3 index, dim3 grid, dim3 threads) {
  block.size = threads.x;
  block.thread = &thread;
  blockIdx = index;
  gridDim = grid;
  blockDim = threads;
  while (block.fibers.size() < block.size) block.fibers.push_back(std::make_unique<Fiber>());
  for (size_t i = 0; i < block.size; ++i) {
    Fiber& f = *block.fibers[i];
    f.state = State::kReady;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
  }
  while (!all_in(0, block.size, State::kDone)) {
    bool moved = false;
    for (size_t i = 0; i < block.size; ++i) {
      if (block.fibers[i]->state != State::kReady) continue;
      resume(i);
      moved = true;
    }
    for (size_t warp = 0; warp < block.size; warp += kWarp) moved |= open_shuffle(warp);
    moved |= open_barrier();
    if (!moved)
      throw std::logic_error("threads of a block wait for each other in different places");
  }
}

}  // namespace emulator

void __syncthreads() { emulator::meet(emulator::State::kAtBarrier, 0, 0); }
int __syncthreads_or(int mine) {
  return static_cast<int>(emulator::meet(emulator::State::kAtBarrier, mine != 0, 0));
}
unsigned __shfl_down_sync(unsigned mask, unsigned mine, int delta) {
  if (mask != 0xffffffffu) throw std::logic_error("a shuffle of part of a warp");
  return emulator::meet(emulator::State::kAtShuffle, mine, static_cast<unsigned>(delta));
}
float __shfl_down_sync(unsigned mask, float mine, int delta) {
  return std::bit_cast<float>(__shfl_down_sync(mask, std::bit_cast<unsigned>(mine), delta));
}
