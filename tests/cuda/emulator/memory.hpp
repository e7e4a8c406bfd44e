#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace emulator {

/// A block of memory of the emulated GPU, or of pinned host memory.
struct MemoryBlock {
  int device = 0;
  bool host = false;
};

/// Memory aligned to 256 bytes, full of NaN, with a page behind it that nobody reaches. That of a
/// device the host does not reach, but while the device works.
void* take_memory(size_t bytes, int device, bool host);
bool give_memory(void* memory);
std::optional<MemoryBlock> find_memory(const void* memory);

/// While one lives, the memory of all devices is in reach. Made under the machine's lock.
class DeviceMemoryInReach {
 public:
  DeviceMemoryInReach();
  ~DeviceMemoryInReach();
  DeviceMemoryInReach(const DeviceMemoryInReach&) = delete;
  DeviceMemoryInReach& operator=(const DeviceMemoryInReach&) = delete;
};

}  // namespace emulator
