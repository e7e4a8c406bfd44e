// If _FORTIFY_SOURCE is defined, glibc reports an error when longjmp changes the stack.
#undef _FORTIFY_SOURCE
#include "block.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulator {

namespace {

constexpr size_t kStackBytes = 64 << 10, kContributionBytes = 256, kSharedAlignment = 1024;
constexpr unsigned kWarp = 32, kRoundsBetweenSleeps = 16, kLongestSleep = 16, kMaxTurns = 16;

enum class State : unsigned char { kReady, kAtBarrier, kAtShuffle, kAtAllgather, kWaits, kDone };

/// One thread of a block, with its own stack. The object is reused for a thread of the next block.
struct Fiber {
  ucontext_t context;  // the initial context
  jmp_buf here;        // where the thread has stopped
  bool started = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  // The value that the thread passes to a barrier or shuffle, and the value that it receives.
  unsigned given = 0, taken = 0;
  unsigned lane = 0;            // the lane whose value a shuffle returns
  size_t first = 0, count = 0;  // the threads that take part in its allgather
  size_t bytes = 0;
  unsigned char contribution[kContributionBytes];
  void (*function)(const unsigned char*) = nullptr;
  bool (*ready)(void*) = nullptr;
  void* ready_context = nullptr;
};

struct Machine {
  jmp_buf scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;  // reused from block to block
  std::vector<State> states;                   // states of the fibers
  std::vector<bool> may_access;  // whether a thread may access memory that previous launches write
  // Indexed by the first thread of an allgather.
  std::vector<std::vector<unsigned char>> all_contributions;
  std::vector<std::vector<unsigned char>> shared;  // one array for each block
  std::vector<std::function<void()>> pending;
  size_t size = 0, current = 0;
  uint64_t clusters = 0;        // number of clusters so far
  std::vector<unsigned> sleep;  // number of rounds for which a warp is delayed
  uint64_t dice = 1;
  const std::function<void()>* thread = nullptr;
  const Cluster* cluster = nullptr;
  std::exception_ptr failure;  // an exception that a thread has thrown
};

thread_local std::unique_ptr<Machine> owned_machine;
// Points to the thread's machine. Unlike owned_machine, this pointer needs no guard when it is
// accessed.
constinit thread_local Machine* machine_here = nullptr;

/// Returns the machine of the calling thread.
Machine& machine() { return *machine_here; }

size_t threads_of_block() { return machine().cluster->threads.x; }
Fiber& running() { return *machine().fibers[machine().current]; }
State& state_of_running() { return machine().states[machine().current]; }

unsigned roll() {
  machine().dice = machine().dice * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>(machine().dice >> 33);
}

void stop() {
  if (_setjmp(running().here) == 0) _longjmp(machine().scheduler, 1);
}

void start() {
  while (true) {
    try {
      (*machine().thread)();
    } catch (...) {
      machine().failure = std::current_exception();
    }
    state_of_running() = State::kDone;
    stop();
  }
}

void resume(size_t index) {
  machine().current = index;
  threadIdx.x = static_cast<unsigned>(index % threads_of_block());
  blockIdx = machine().cluster->blocks[index / threads_of_block()];
  if (_setjmp(machine().scheduler) != 0) return;
  Fiber& f = running();
  if (std::exchange(f.started, true)) _longjmp(f.here, 1);
  setcontext(&f.context);
}

/// Stops the running thread in `state` until all threads of the operation have arrived.
unsigned stop_at(State state, unsigned given, unsigned lane) {
  Fiber& me = running();
  state_of_running() = state;
  me.given = given;
  me.lane = lane;
  stop();
  return me.taken;
}

bool all_in(size_t begin, size_t end, State state) {
  return std::all_of(machine().states.begin() + static_cast<ptrdiff_t>(begin),
                     machine().states.begin() + static_cast<ptrdiff_t>(end),
                     [state](State s) { return s == state; });
}

/// Opens a barrier if every thread of the block has either arrived or ended.
bool open_barrier(size_t begin) {
  unsigned any = 0;
  bool waits = false;
  const size_t end = begin + threads_of_block();
  for (size_t i = begin; i < end; ++i) {
    if (machine().states[i] == State::kDone) continue;
    if (machine().states[i] != State::kAtBarrier) return false;
    waits = true;
    any |= machine().fibers[i]->given;
  }
  for (size_t i = begin; i < end; ++i) {
    if (machine().states[i] != State::kAtBarrier) continue;
    machine().fibers[i]->taken = any;
    machine().states[i] = State::kReady;
  }
  return waits;
}

/// Opens a shuffle if the whole warp has arrived.
bool open_shuffle(size_t begin) {
  const size_t end = begin + kWarp;
  if (end > machine().size || !all_in(begin, end, State::kAtShuffle)) return false;
  for (size_t i = begin; i < end; ++i) {
    Fiber& f = *machine().fibers[i];
    f.taken = machine().fibers[begin + f.lane]->given;
  }
  std::fill_n(machine().states.begin() + static_cast<ptrdiff_t>(begin), kWarp, State::kReady);
  return true;
}

/// Opens an allgather if all of its threads have arrived. The contributions are stored at its first
/// thread.
bool open_allgather(size_t begin) {
  if (machine().states[begin] != State::kAtAllgather) return false;
  const Fiber& leader = *machine().fibers[begin];
  if (leader.first != begin) return false;
  const size_t end = begin + leader.count;
  if (!all_in(begin, end, State::kAtAllgather)) return false;
  for (size_t i = begin; i < end; ++i)
    if (machine().fibers[i]->first != begin || machine().fibers[i]->count != leader.count)
      return false;
  std::vector<unsigned char>& all = machine().all_contributions[begin];
  all.resize(leader.bytes * leader.count);
  for (size_t i = begin; i < end; ++i) {
    Fiber& f = *machine().fibers[i];
    std::memcpy(all.data() + (i - begin) * leader.bytes, f.contribution, leader.bytes);
    machine().states[i] = State::kReady;
  }
  if (leader.function) leader.function(all.data());
  return true;
}

bool end_wait(size_t index) {
  if (machine().states[index] != State::kWaits) return false;
  const Fiber& f = *machine().fibers[index];
  if (!f.ready(f.ready_context)) return false;
  machine().states[index] = State::kReady;
  return true;
}

/// Runs some of the pending work, in any order. If nothing else can run, runs at least one item.
bool do_pending(bool must) {
  bool moved = false;
  for (size_t i = 0; i < machine().pending.size();) {
    if (roll() % 4 != 0 && !(must && !moved && i + 1 == machine().pending.size())) {
      ++i;
      continue;
    }
    const auto work = std::move(machine().pending[i]);
    machine().pending.erase(machine().pending.begin() + static_cast<ptrdiff_t>(i));
    work();
    moved = true;
  }
  return moved;
}

void prepare(const std::function<void()>& thread, const Cluster& cluster) {
  if (!machine_here) {
    owned_machine = std::make_unique<Machine>();
    machine_here = owned_machine.get();
  }
  machine().cluster = &cluster;
  ++machine().clusters;
  machine().thread = &thread;
  machine().size = cluster.blocks.size() * cluster.threads.x;
  machine().pending.clear();
  machine().sleep.assign((machine().size + kWarp - 1) / kWarp, 0);
  gridDim = cluster.grid;
  blockDim = cluster.threads;
  machine().shared.resize(cluster.blocks.size());
  for (auto& memory : machine().shared)
    // Bytes of 0xff are NaN in every type.
    memory.assign(cluster.shared_bytes + kSharedAlignment, 0xff);
  machine().all_contributions.resize(machine().size);
  while (machine().fibers.size() < machine().size)
    machine().fibers.push_back(std::make_unique<Fiber>());
  machine().states.resize(machine().fibers.size(), State::kDone);
  machine().may_access.assign(machine().size, !cluster.early);
  for (size_t i = 0; i < machine().size; ++i) {
    Fiber& f = *machine().fibers[i];
    const bool at_rest = f.started && machine().states[i] == State::kDone;
    machine().states[i] = State::kReady;
    if (at_rest) continue;  // other fibers are new, or were stopped in the middle of a block
    f.started = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
  }
}

/// Runs the threads of a warp. Also runs other threads if the warp only waits for them.
bool let_warp_run(size_t warp) {
  const size_t first = warp * kWarp, end = std::min(first + kWarp, machine().size);
  bool moved = false;
  for (unsigned turns = roll() % kMaxTurns + 1; turns > 0; --turns) {
    for (size_t i = first; i < end; ++i) {
      if (machine().states[i] != State::kReady) continue;
      resume(i);
      moved = true;
    }
    if (!open_allgather(first)) break;
  }
  return moved;
}

/// Runs every thread that can run, except in warps that are delayed for some rounds. The delays
/// make unordered accesses happen in many different orders.
bool let_all_run() {
  bool moved = false, slept = false;
  const size_t warps = (machine().size + kWarp - 1) / kWarp, offset = roll() % warps;
  for (size_t n = 0; n < warps; ++n) {
    const size_t warp = (n + offset) % warps;
    unsigned& rest = machine().sleep[warp];
    if (rest == 0 && roll() % kRoundsBetweenSleeps == 0) rest = roll() % kLongestSleep;
    if (rest > 0) {
      slept = true;
      --rest;
      continue;
    }
    moved |= let_warp_run(warp);
  }
  return moved || slept;
}

bool open_all() {
  bool moved = false;
  for (size_t i = 0; i < machine().size; ++i) {
    moved |= end_wait(i);
    moved |= open_allgather(i);
    if (i % kWarp == 0) moved |= open_shuffle(i);
    if (i % threads_of_block() == 0) moved |= open_barrier(i);
  }
  return moved;
}

}  // namespace

void run_cluster(const std::function<void()>& thread, const Cluster& cluster) {
  prepare(thread, cluster);
  while (!all_in(0, machine().size, State::kDone)) {
    bool moved = let_all_run();
    if (machine().failure) std::rethrow_exception(std::exchange(machine().failure, nullptr));
    moved |= do_pending(false);
    moved |= open_all();
    if (!moved) moved = do_pending(true);
    if (!moved)
      throw std::logic_error("threads of a block wait for each other at different places");
  }
  if (!machine().pending.empty())
    throw std::logic_error("a block ended while its copies were in flight");
}

size_t thread_in_cluster() { return machine().current; }
size_t threads_in_cluster() { return machine().size; }
unsigned block_in_cluster() {
  return static_cast<unsigned>(machine().current / threads_of_block());
}

uint64_t cluster_number() { return machine().clusters; }

unsigned char* shared_memory(unsigned block) {
  const auto address = reinterpret_cast<uintptr_t>(machine().shared.at(block).data());
  return reinterpret_cast<unsigned char*>((address + kSharedAlignment - 1) / kSharedAlignment *
                                          kSharedAlignment);
}

size_t shared_bytes() { return machine().cluster->shared_bytes; }

bool block_runs(unsigned block) {
  const size_t first = block * threads_of_block();
  return !all_in(first, first + threads_of_block(), State::kDone);
}

void run_as_one(size_t first, size_t count, const void* contribution, size_t bytes,
                void (*function)(const unsigned char* all)) {
  if (bytes > kContributionBytes) throw std::logic_error("a contribution has more than 256 bytes");
  Fiber& me = running();
  me.function = function;
  state_of_running() = State::kAtAllgather;
  me.first = machine().current / threads_of_block() * threads_of_block() + first;
  me.count = count;
  me.bytes = bytes;
  if (bytes > 0) std::memcpy(me.contribution, contribution, bytes);
  stop();
}

const unsigned char* allgather(size_t first, size_t count, const void* contribution, size_t bytes) {
  run_as_one(first, count, contribution, bytes, nullptr);
  return machine().all_contributions[running().first].data();
}

void griddepcontrol_wait() { machine().may_access[machine().current] = true; }
void require_predecessors() {
  if (!machine().may_access[machine().current])
    throw std::logic_error("memory is accessed while the previous launch may still run");
}

void cluster_barrier() {
  Fiber& me = running();
  me.function = nullptr;
  state_of_running() = State::kAtAllgather;
  me.first = 0;
  me.count = machine().size;
  me.bytes = 0;
  stop();
}

void wait_until(bool (*ready)(void*), void* context) {
  if (ready(context)) return;
  Fiber& me = running();
  state_of_running() = State::kWaits;
  me.ready = ready;
  me.ready_context = context;
  stop();
}

void later(std::function<void()> work) { machine().pending.push_back(std::move(work)); }

}  // namespace emulator

void __syncthreads() { emulator::stop_at(emulator::State::kAtBarrier, 0, 0); }
void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

int __syncthreads_or(int mine) {
  return static_cast<int>(emulator::stop_at(emulator::State::kAtBarrier, mine != 0, 0));
}
void __syncwarp() {
  emulator::allgather(threadIdx.x / emulator::kWarp * emulator::kWarp, emulator::kWarp, nullptr, 0);
}
static unsigned shuffle(unsigned mask, unsigned mine, unsigned lane) {
  if (mask != 0xffffffffu) throw std::logic_error("a shuffle of part of a warp");
  return emulator::stop_at(emulator::State::kAtShuffle, mine, lane);
}
unsigned __shfl_down_sync(unsigned mask, unsigned mine, int delta) {
  const unsigned lane = threadIdx.x % 32, from = lane + static_cast<unsigned>(delta);
  return shuffle(mask, mine, from < 32 ? from : lane);
}
unsigned __shfl_xor_sync(unsigned mask, unsigned mine, int lanes) {
  return shuffle(mask, mine, threadIdx.x % 32 ^ static_cast<unsigned>(lanes));
}
unsigned __shfl_sync(unsigned mask, unsigned mine, int lane) {
  return shuffle(mask, mine, static_cast<unsigned>(lane));
}
float __shfl_down_sync(unsigned mask, float mine, int delta) {
  return std::bit_cast<float>(__shfl_down_sync(mask, std::bit_cast<unsigned>(mine), delta));
}
