#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muonrt::tool {

/// Device memory of a rank, memory that host and device share, and copies between them. On the host
/// both are ordinary memory.
class RankMemory {
 public:
  /// Throws if the device is missing.
  /// @param cuda  false: the host.
  /// @param rank  uses the GPU with the number `rank` modulo the number of GPUs.
  RankMemory(bool cuda, int rank);
  ~RankMemory();

  bool on_host() const;
  /// Allocates zeros that host and device can access, until this object is destroyed. Returns null
  /// for 0 bytes.
  unsigned char* allocate(int64_t bytes);
  /// As `allocate`, but the memory is not initialized and only the device needs to access it.
  unsigned char* allocate_far(int64_t bytes);
  std::vector<unsigned char> read(const void* from, int64_t bytes);
  void write(void* to, std::span<const unsigned char> from);
  /// Index of the GPU; 0 on the host.
  int device_index() const { return index_; }

 private:
  struct Inside;
  void copy(void* to, const void* from, int64_t bytes);

  int index_ = 0;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
