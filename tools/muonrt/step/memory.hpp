#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace muonrt::tool {

/// Memory that both this process and the device of a rank reach, and copies from and to memory that
/// the device alone reaches.
class StepMemory {
 public:
  /// @param cuda  else the host. @param rank  takes the GPU of this number, counted round.
  /// Throws where there is no such device.
  StepMemory(bool cuda, int rank);
  ~StepMemory();

  /// Zeros; given back with this object. Null for no bytes.
  unsigned char* allocate(int64_t bytes);
  std::vector<unsigned char> read(const void* from, int64_t bytes);
  void write(void* to, const std::vector<unsigned char>& from);
  /// Index of the GPU; 0 on the host.
  int device_index() const { return index_; }

 private:
  struct Inside;
  void copy(void* to, const void* from, int64_t bytes);

  int index_ = 0;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
