#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace emulator {

namespace {

struct Mapping {
  MemoryBlock block;
  size_t bytes;
  char* pages;
  size_t page_bytes;  // without the page after the block
  int file = -1;      // contains the pages if the block is shared with other processes
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

constexpr size_t kAlignment = 256;
size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

/// Makes the pages of a block part of `file`, so that other processes can map them, too.
bool map_file(Mapping& mapping, int file) {
  if (file < 0 || mmap(mapping.pages, mapping.page_bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    return false;
  mapping.file = file;
  if (!is_in_reach(mapping.block)) mprotect(mapping.pages, mapping.page_bytes, PROT_NONE);
  return true;
}

}  // namespace

void* allocate_memory(size_t bytes, int device, bool host) {
  constexpr int kNanByte = 0xff;
  const size_t page = page_size();
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
  munmap(at->second.pages, at->second.page_bytes + page_size());
  if (at->second.file >= 0) close(at->second.file);
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

std::optional<SharedMemory> share_memory(void* pointer) {
  const auto at = memory().mappings.find(static_cast<const char*>(pointer));
  if (at == memory().mappings.end() || at->second.block.host) return std::nullopt;
  Mapping& m = at->second;
  if (m.file < 0) {
    mprotect(m.pages, m.page_bytes, PROT_READ);
    const int file = memfd_create("emulated GPU", MFD_CLOEXEC);
    const auto written = write(file, m.pages, m.page_bytes);
    if (written != static_cast<ssize_t>(m.page_bytes) || !map_file(m, file)) return std::nullopt;
  }
  return SharedMemory{getpid(), m.file, m.bytes, m.block.device};
}

void* open_memory(const SharedMemory& shared) {
  const std::string name = "/proc/" + std::to_string(shared.process) + "/fd/";
  const int file = open((name + std::to_string(shared.file)).c_str(), O_RDWR | O_CLOEXEC);
  void* const here = file < 0 ? nullptr : allocate_memory(shared.bytes, shared.device, false);
  if (here && map_file(memory().mappings[static_cast<const char*>(here)], file)) return here;
  free_memory(here);
  if (file >= 0) close(file);
  return nullptr;
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
