#pragma once

#include <utility>

#include "base/function_ref.hpp"

namespace muonrt {

/// Owns a file descriptor. A forked child closes its copy immediately, so the child's object is
/// empty. The child does not have the threads that use the descriptor. An open copy could keep a
/// connection open or a file locked after the parent has exited.
class Descriptor {
 public:
  Descriptor() = default;
  /// Owns the descriptor that `open` returns. If `open` returns -1, the object is empty and errno
  /// is unchanged. The process cannot fork during the call, so `open` must not block.
  explicit Descriptor(FunctionRef<int()> open);
  /// Owns the two descriptors that `open` writes. The process cannot fork during the call. If
  /// `open` returns false, both objects are empty.
  static std::pair<Descriptor, Descriptor> pair(FunctionRef<bool(int (&)[2])> open);
  Descriptor(Descriptor&& other) noexcept { *this = std::move(other); }
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int fd() const { return fd_; }
  /// Returns the descriptor without closing it. Afterwards the object is empty.
  int release() noexcept;
  explicit operator bool() const { return fd_ >= 0; }

 private:
  friend class Descriptors;

  int fd_ = -1;
  // Neighbors in the list of all open descriptors.
  Descriptor* previous_ = nullptr;
  Descriptor* next_ = nullptr;
};

}  // namespace muonrt
