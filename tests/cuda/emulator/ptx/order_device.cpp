#include <array>
#include <cstdlib>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "ptx/order.hpp"

namespace emulator::ptx::order {

namespace {

/// An access, and the cluster that it was made in.
struct Mark {
  uint64_t cluster = 0;  // 0: none
  Epoch epoch;
};

/// Two bytes of the device's memory: their last write in this launch, and the reads since, of each
/// cluster the last of a thread.
struct Word {
  Mark write;
  std::vector<Mark> reads;
};
constexpr uint64_t kWord = 2, kLine = 32;
using Line = std::array<Word, kLine / kWord>;

std::unordered_map<uint64_t, Line>& lines() {
  static thread_local std::unordered_map<uint64_t, Line> of_launch;
  return of_launch;
}

/// Whether an access has happened before the running thread's. Those of another cluster have not,
/// nor are they seen to be done by anyone else here.
bool before(const Mark& m) {
  return m.cluster == 0 || (m.cluster == cluster_number() && is_over(m.epoch));
}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void note_read(Word& w, const Mark& mine) {
  for (Mark& m : w.reads)
    if (m.cluster == mine.cluster && (m.epoch.who == mine.epoch.who || is_over(m.epoch)))
      return void(m = mine);
  // Of the readers in other clusters one says it all: nothing orders them with anyone.
  if (!w.reads.empty() && w.reads.front().cluster != mine.cluster) return;
  w.reads.push_back(mine);
}

void reach(Word& w, const Mark& mine, Access access) {
  const bool both_atomic = access == Access::kAtomic && w.write.epoch.atomic;
  require(both_atomic || before(w.write),
          access == Access::kRead
              ? "device memory is read that another thread may not have written yet"
              : "device memory is written beside another write");
  if (access == Access::kRead) return note_read(w, mine);
  for (const Mark& read : w.reads)
    require(before(read), "device memory is written that another thread may still read");
  w.reads.clear();
  w.write = mine;
}

}  // namespace

void device_access(uint64_t address, size_t bytes, Access access) {
  static const bool asked = std::getenv("MUONRT_EMULATED_RACES") != nullptr;
  if (!asked || bytes < kWord) return;
  const Mark mine{cluster_number(), now(access == Access::kAtomic)};
  for (uint64_t at = address / kWord; at <= (address + bytes - 1) / kWord; ++at)
    reach(lines()[at * kWord / kLine][at % (kLine / kWord)], mine, access);
}

void next_launch() { lines().clear(); }

}  // namespace emulator::ptx::order
