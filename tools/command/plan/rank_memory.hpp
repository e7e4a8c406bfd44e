#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muonrt::tool {

/// Allocates memory for a rank: device memory, and memory that host and device can access. Copies
/// between device and host. Without a GPU, both kinds are ordinary host memory.
class RankMemory {
 public:
  /// Throws if the device is missing.
  /// @param cuda  whether to use a GPU.
  /// @param rank  selects the GPU: `rank` modulo the number of GPUs.
  RankMemory(bool cuda, int rank);
  ~RankMemory();

  bool on_host() const;
  /// Allocates memory that is filled with zeros and that host and device can access. It is freed
  /// with this object. Returns null for 0 bytes.
  unsigned char* allocate(int64_t bytes);
  /// Allocates uninitialized memory that only the device needs to access.
  unsigned char* allocate_far(int64_t bytes);
  std::vector<unsigned char> read(const void* from, int64_t bytes);
  void write(void* to, std::span<const unsigned char> from);
  /// Returns the index of the GPU, or 0 on the host.
  int device_index() const { return index_; }

 private:
  struct Inside;
  void copy(void* to, const void* from, int64_t bytes);

  int index_ = 0;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
