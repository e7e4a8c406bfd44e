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

/// Device memory that other processes can open.
struct SharedMemory {
  int process, file;
  size_t bytes;
  int device;
};
/// Returns nullopt if `memory` is not the beginning of a block of device memory.
std::optional<SharedMemory> share_memory(void* memory);
/// Maps memory of another process, or returns null on failure. free_memory() unmaps the memory.
void* open_memory(const SharedMemory& shared);

/// Makes the memory of the devices whose bits are set accessible, and all other device memory
/// inaccessible. Initially no bit is set. Call this function while the machine is locked.
void set_reach(unsigned devices);
unsigned reach();

}  // namespace emulator
