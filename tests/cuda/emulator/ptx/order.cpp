#include "ptx/order.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"

namespace emulator::ptx::order {

namespace {

/// A vector clock. It contains entries for threads, followed by entries for barriers and engines.
class Clocks {
 public:
  uint32_t of(size_t who) const { return who < known_.size() ? known_[who] : 0; }
  void set(size_t who, uint32_t clock) {
    if (who >= known_.size()) known_.resize(who + 1);
    known_[who] = clock;
  }
  void raise(size_t who, uint32_t clock) { set(who, std::max(of(who), clock)); }
  void join(const Clocks& other) {
    if (other.known_.size() > known_.size()) known_.resize(other.known_.size());
    for (size_t i = 0; i < other.known_.size(); ++i)
      known_[i] = std::max(known_[i], other.known_[i]);
  }
  void clear() { known_.clear(); }

 private:
  std::vector<uint32_t> known_;
};

/// Number of bytes that are tracked together. In these kernels, no two threads share a unit of this
/// size.
constexpr size_t kWord = 2;

/// The last write of a word of shared memory, and the reads after it.
struct Word {
  uint64_t cluster = 0;  // the cluster that the word belongs to
  Epoch write;           // the last write that is not atomic
  std::vector<Epoch> reads, atomics;
};

/// A thread barrier. Some threads may leave one round while others are already arriving for the
/// next round.
struct ThreadBarrier {
  std::array<Clocks, 2> arrived;
  std::array<uint32_t, 2> round = {};
};

struct Phases {
  uint32_t done = 0;  // number of phases that have ended
  uint8_t phase = 0;
  size_t who = 0;
  Clocks arriving, arrived;
};

struct Thread {
  Clocks knows;
  std::vector<uint32_t> fences;                   // the thread's clocks at its fences
  std::unordered_map<unsigned, uint32_t> rounds;  // number of rounds at each thread barrier
  size_t bulk = 0;                                // id of the thread's copy engine, or 0 if it has
                                                  // none yet
  // The latest groups that are complete.
  uint32_t bulk_number = 0, bulk_committed = 0, product_group = 0;
};

struct Cluster {
  uint64_t number = 0;
  std::vector<Thread> threads;
  std::vector<std::vector<Word>> shared;  // one array for each block
  std::unordered_map<unsigned, ThreadBarrier> thread_barriers;
  std::map<const uint64_t*, Phases> barriers;
  std::map<size_t, size_t> products;  // ids of the tensor cores, by warpgroup
  size_t ids = 0;
};

Cluster& cluster() {
  static thread_local Cluster here;
  if (here.number != cluster_number()) {
    auto shared = std::move(here.shared);
    here = {};
    here.shared = std::move(shared);
    here.number = cluster_number();
    here.ids = threads_in_cluster();
    here.threads.resize(here.ids);
  }
  return here;
}

Thread& running() {
  auto& threads = cluster().threads;
  const size_t me = thread_in_cluster();
  if (threads[me].knows.of(me) == 0) threads[me].knows.set(me, 1);
  return threads[me];
}

uint32_t clock_of_running() { return running().knows.of(thread_in_cluster()); }
void tick() { running().knows.set(thread_in_cluster(), clock_of_running() + 1); }

/// Returns whether an access is ordered before the current position of the running thread.
bool over(const Thread& t, const Epoch& e) { return e.clock == 0 || t.knows.of(e.who) >= e.clock; }

/// Returns whether the accessing thread has executed a fence after the access, and whether this
/// fence is also ordered before the current position of the running thread.
bool fenced(const Thread& t, const Epoch& e) {
  if (e.clock == 0 || e.engine) return true;
  const auto& fences = cluster().threads.at(e.who).fences;
  const auto next = std::lower_bound(fences.begin(), fences.end(), e.clock);
  return next != fences.end() && t.knows.of(e.who) >= *next;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

template <class Visit>
void for_words(unsigned block, size_t offset, size_t bytes, const Visit& visit) {
  Cluster& c = cluster();
  if (c.shared.size() <= block) c.shared.resize(block + 1);
  const size_t first = offset / kWord, last = (offset + bytes - 1) / kWord;
  if (c.shared[block].size() <= last) c.shared[block].resize(shared_bytes() / kWord + 1);
  for (size_t i = first; i <= last; ++i) {
    Word& w = c.shared[block][i];
    if (std::exchange(w.cluster, c.number) != c.number) {
      w.write = {};
      w.reads.clear();
      w.atomics.clear();
    }
    visit(w);
  }
}

/// Adds an access. A short list is not sorted; a long list is indexed by id.
void keep(std::vector<Epoch>& all, const Epoch& e) {
  constexpr size_t kFew = 8;
  if (all.size() <= kFew) {
    for (Epoch& known : all)
      if (known.who == e.who) return void(known = e);
    all.push_back(e);
    if (all.size() <= kFew) return;
    std::vector<Epoch> by_id(kFew + 1);
    for (const Epoch& known : all) {
      by_id.resize(std::max<size_t>(by_id.size(), known.who + 1));
      by_id[known.who] = known;
    }
    all = std::move(by_id);
  } else {
    if (all.size() <= e.who) all.resize(e.who + 1);
    all[e.who] = e;
  }
}

/// Returns whether the last write and all later atomic accesses are ordered before the current
/// position of the running thread.
bool written(const Thread& t, const Word& w) {
  return over(t, w.write) && std::all_of(w.atomics.begin(), w.atomics.end(),
                                         [&](const Epoch& e) { return over(t, e); });
}
bool written_and_fenced(const Thread& t, const Word& w) {
  return fenced(t, w.write) && std::all_of(w.atomics.begin(), w.atomics.end(),
                                           [&](const Epoch& e) { return fenced(t, e); });
}
void forget(Word& w) {
  w.reads.clear();
  w.atomics.clear();
}

void engine_reads(size_t offset, size_t bytes, const Epoch& e) {
  const Thread& me = running();
  for_words(block_in_cluster(), offset, bytes, [&](Word& w) {
    require(written(me, w), "an engine reads data that may not be written yet");
    require(written_and_fenced(me, w),
            "an engine reads data that was written without a fence after it");
    keep(w.reads, e);
  });
}

void write(unsigned block, size_t offset, size_t bytes, const Epoch& e) {
  const Thread& me = running();
  for_words(block, offset, bytes, [&](Word& w) {
    require(e.atomic ? over(me, w.write) : written(me, w), "a write is unordered with another");
    for (const Epoch& read : w.reads)
      require(over(me, read), "a write of data that may still be read");
    if (e.atomic) return keep(w.atomics, e);
    forget(w);
    w.write = e;
  });
}

/// Returns the id of the clock of the tensor cores that work for the running thread's warpgroup.
uint32_t products_of_group() {
  size_t& id = cluster().products[block_in_cluster() * 8 + threadIdx.x / 128];
  if (id == 0) id = cluster().ids++;
  return static_cast<uint32_t>(id);
}

/// Checks whether a phase of a barrier has ended, and returns the barrier's phases.
Phases& phases(const uint64_t* barrier) {
  Phases& p = cluster().barriers[barrier];
  if (p.who == 0) p.who = cluster().ids++;
  const uint8_t now = muonrt::cuda::emulated(const_cast<uint64_t*>(barrier)).phase;
  if (now != p.phase) {
    p.phase = now;
    ++p.done;
    p.arrived.join(p.arriving);
    p.arriving.clear();
  }
  return p;
}

}  // namespace

Epoch now(bool atomic) {
  return {static_cast<uint32_t>(thread_in_cluster()), clock_of_running(), false, atomic};
}
bool is_over(const Epoch& e) { return over(running(), e); }

void access(unsigned block, size_t offset, size_t bytes, Access access) {
  const bool atomic = access == Access::kAtomic;
  const Epoch mine = now(atomic);
  if (access != Access::kRead) return write(block, offset, bytes, mine);
  const Thread& me = running();
  for_words(block, offset, bytes, [&](Word& w) {
    require(written(me, w), "a read of data that may not be written yet");
    keep(w.reads, mine);
  });
}

void bulk_write(unsigned block, size_t offset, size_t bytes, const uint64_t* barrier) {
  const Phases& p = phases(barrier);
  const Epoch mine{static_cast<uint32_t>(p.who), p.done + 1, true, false};
  const Thread& me = running();
  for_words(block, offset, bytes, [&](Word& w) {
    require(written(me, w), "a bulk copy is unordered with another write");
    require(written_and_fenced(me, w), "a bulk copy overwrites a write that has no fence after it");
    for (const Epoch& read : w.reads) {
      require(over(me, read), "a bulk copy writes data that may still be read");
      require(fenced(me, read), "a bulk copy overwrites data whose reads have no fence after them");
    }
    forget(w);
    w.write = mine;
  });
}

void bulk_read(size_t offset, size_t bytes) {
  Thread& me = running();
  if (me.bulk == 0) me.bulk = cluster().ids++;
  engine_reads(offset, bytes, {static_cast<uint32_t>(me.bulk), ++me.bulk_number, true, false});
}
void tma_store_commit() { running().bulk_committed = running().bulk_number; }
void tma_store_wait() {
  Thread& me = running();
  if (me.bulk != 0) me.knows.set(me.bulk, me.bulk_committed);
}

void product_read(size_t offset, size_t bytes) {
  engine_reads(offset, bytes, {products_of_group(), running().product_group + 1, true, false});
}
void products_commit() { ++running().product_group; }
void products_wait(uint32_t pending) {
  Thread& me = running();
  if (me.product_group > pending) me.knows.raise(products_of_group(), me.product_group - pending);
}

void fence() {
  running().fences.push_back(clock_of_running());
  tick();
}

void arrive(unsigned which) {
  Thread& me = running();
  const uint32_t round = ++me.rounds[which];
  ThreadBarrier& barrier_of_threads = cluster().thread_barriers[which];
  if (barrier_of_threads.round[round % 2] != round) {
    barrier_of_threads.round[round % 2] = round;
    barrier_of_threads.arrived[round % 2].clear();
  }
  barrier_of_threads.arrived[round % 2].join(me.knows);
  tick();
}
void depart(unsigned which) {
  Thread& me = running();
  me.knows.join(cluster().thread_barriers[which].arrived[me.rounds[which] % 2]);
}
// The number of a barrier contains, from the upper bits to the lower bits, its kind, the block and
// its index.
unsigned of_block(unsigned number) { return 1u << 24 | block_in_cluster() << 8 | number; }
unsigned of_warp() { return 2u << 24 | static_cast<unsigned>(thread_in_cluster() / 32); }
unsigned of_cluster() { return 3u << 24; }

void require_made(unsigned block, size_t offset) {
  const Thread& me = running();
  for_words(block, offset, sizeof(uint64_t), [&](const Word& w) {
    require(over(me, w.write), "a barrier may not be initialized yet");
  });
}
void require_made_for_engines(unsigned block, size_t offset) {
  require_made(block, offset);
  const Thread& me = running();
  for_words(block, offset, sizeof(uint64_t), [&](const Word& w) {
    require(fenced(me, w.write), "a barrier was initialized without a fence after it");
  });
}

void arrived(const uint64_t* barrier) {
  phases(barrier).arriving.join(running().knows);
  tick();
}
void waited(const uint64_t* barrier) {
  const Phases& p = phases(barrier);
  Thread& me = running();
  me.knows.join(p.arrived);
  me.knows.set(p.who, std::max(me.knows.of(p.who), p.done));
}

}  // namespace emulator::ptx::order
