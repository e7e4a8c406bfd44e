#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

namespace emulator {

namespace {

struct Mapping {
  MemoryBlock block;
  size_t bytes;
  char* pages;
  size_t page_bytes;  // without the page after the block
};

struct Memory {
  std::map<const char*, Mapping> mappings;
  unsigned in_reach = 0;  // one bit for each device
};

Memory& memory() {
  static Memory* const instance = new Memory();
  return *instance;
}

bool is_in_reach(const MemoryBlock& block) {
  return block.host || (memory().in_reach >> block.device & 1) != 0;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* allocate_memory(size_t bytes, int device, bool host) {
  constexpr size_t kAlignment = 256;
  constexpr int kNanByte = 0xff;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t room = round_up(bytes, kAlignment), page_bytes = round_up(room, page);
  void* pages =
      mmap(nullptr, page_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  // Huge pages save time, because the protection of scratch memory changes at every launch.
  madvise(pages, page_bytes, MADV_HUGEPAGE);
  std::memset(pages, kNanByte, page_bytes);
  char* first = static_cast<char*>(pages);
  mprotect(first + page_bytes, page, PROT_NONE);
  if (!is_in_reach({device, host})) mprotect(pages, page_bytes, PROT_NONE);
  char* start = first + page_bytes - room;
  memory().mappings[start] = {{device, host}, bytes, first, page_bytes};
  return start;
}

bool free_memory(void* pointer) {
  if (!pointer) return true;
  const auto at = memory().mappings.find(static_cast<const char*>(pointer));
  if (at == memory().mappings.end()) return false;
  munmap(at->second.pages, at->second.page_bytes + static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  memory().mappings.erase(at);
  return true;
}

std::optional<MemoryBlock> find_memory(const void* pointer) {
  const auto* address = static_cast<const char*>(pointer);
  auto at = memory().mappings.upper_bound(address);
  if (at == memory().mappings.begin()) return std::nullopt;
  --at;
  if (address >= at->first + at->second.bytes) return std::nullopt;
  return at->second.block;
}

void set_reach(unsigned devices) {
  const unsigned before = std::exchange(memory().in_reach, devices);
  if (before == devices) return;
  for (const auto& [start, m] : memory().mappings) {
    if (m.block.host || ((before ^ devices) >> m.block.device & 1) == 0) continue;
    mprotect(m.pages, m.page_bytes, is_in_reach(m.block) ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

unsigned reach() { return memory().in_reach; }

}  // namespace emulator
