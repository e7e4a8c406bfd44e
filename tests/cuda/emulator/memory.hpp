#pragma once

#include <cstddef>
#include <optional>

namespace emulator {

/// A block of memory of the emulated GPU, or of pinned host memory.
struct MemoryBlock {
  int device = 0;
  bool host = false;
};

/// GPUs that there are.
constexpr int kDevices = 2;

/// Memory aligned to 256 bytes, full of NaN, with a page behind it that nobody reaches. That of a
/// device the host does not reach, but while the device works.
void* take_memory(size_t bytes, int device, bool host);
bool give_memory(void* memory);
std::optional<MemoryBlock> find_memory(const void* memory);

/// Puts in reach the memory of the devices whose bits are set, and of no others; 0 at first. Under
/// the machine's lock.
void set_reach(unsigned devices);
unsigned reach();

}  // namespace emulator
