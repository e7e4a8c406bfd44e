#pragma once

#include <cstddef>
#include <optional>

namespace emulator {

/// A block of emulated GPU memory or of pinned host memory.
struct MemoryBlock {
  int device = 0;
  bool host = false;
};

/// Number of GPUs.
constexpr int kDevices = 2;

/// Allocates memory that is aligned to 256 bytes and filled with NaN. The page after the memory is
/// inaccessible. The host can access device memory only while the device is working.
void* allocate_memory(size_t bytes, int device, bool host);
bool free_memory(void* memory);
std::optional<MemoryBlock> find_memory(const void* memory);

/// Makes the memory of the devices whose bits are set accessible, and all other memory
/// inaccessible. Initially no bit is set. Call this function only while the machine is locked.
void set_reach(unsigned devices);
unsigned reach();

}  // namespace emulator
