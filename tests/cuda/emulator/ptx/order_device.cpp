#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "ptx/order.hpp"

namespace emulator::ptx::order {

namespace {

/// An access, and the cluster that made it.
struct Mark {
  uint64_t cluster = 0;  // 0: no access
  Epoch epoch;
};

/// A byte of device memory: its last write in this launch, and the later reads and atomic accesses.
struct Word {
  Mark write;  // the last write that is not atomic
  std::vector<Mark> reads, atomics;
};
constexpr uint64_t kWord = 1, kLine = 32;
using Line = std::array<Word, kLine / kWord>;

std::unordered_map<uint64_t, Line>& lines() {
  static thread_local std::unordered_map<uint64_t, Line> of_launch;
  return of_launch;
}

/// Returns whether an access is ordered before the current access of the running thread. Accesses
/// of other clusters are not ordered, because no thread can observe that they are complete.
bool before(const Mark& m) {
  return m.cluster == 0 || (m.cluster == cluster_number() && is_over(m.epoch));
}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void keep(std::vector<Mark>& all, const Mark& mine) {
  for (Mark& m : all)
    if (m.cluster == mine.cluster && (m.epoch.who == mine.epoch.who || is_over(m.epoch)))
      return void(m = mine);
  // One access of another cluster is enough, because accesses of other clusters are never ordered.
  if (!all.empty() && all.front().cluster != mine.cluster) return;
  all.push_back(mine);
}

bool all_before(const std::vector<Mark>& marks) {
  return std::all_of(marks.begin(), marks.end(), before);
}

void reach(Word& w, const Mark& mine, Access access) {
  const bool atomic = access == Access::kAtomic;
  require(before(w.write) && (atomic || all_before(w.atomics)),
          access == Access::kRead
              ? "device memory is read that another thread may not have written yet"
              : "device memory is written unordered with another write");
  if (access == Access::kRead) return keep(w.reads, mine);
  require(all_before(w.reads), "device memory is written that another thread may still read");
  if (atomic) return keep(w.atomics, mine);
  w.reads.clear();
  w.atomics.clear();
  w.write = mine;
}

}  // namespace

void device_access(uint64_t address, size_t bytes, Access access) {
  static const bool asked = std::getenv("MUONRT_EMULATED_RACES") != nullptr;
  if (!asked) return;
  const Mark mine{cluster_number(), now(access == Access::kAtomic)};
  for (uint64_t at = address / kWord; at <= (address + bytes - 1) / kWord; ++at)
    reach(lines()[at * kWord / kLine][at % (kLine / kWord)], mine, access);
}

void next_launch() { lines().clear(); }

}  // namespace emulator::ptx::order
