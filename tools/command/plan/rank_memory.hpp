#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace muonrt::tool {

/// Memory of a rank's device, memory that this process reaches too, and copies between them. On the
/// host all of it is plain memory.
class RankMemory {
 public:
  /// @param cuda  else the host. @param rank  takes the GPU of this number, counted round.
  /// Throws where there is no such device.
  RankMemory(bool cuda, int rank);
  ~RankMemory();

  bool on_host() const;
  /// Zeros that this process and the device reach; given back with this object. Null for no bytes.
  unsigned char* allocate(int64_t bytes);
  /// Memory that the device alone may reach, holding anything; else the same.
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
