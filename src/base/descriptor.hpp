#pragma once

#include <utility>

#include "base/function_ref.hpp"

namespace muonrt {

/// A file descriptor that the destructor closes. After a fork, the child's object is empty and its
/// copy of the descriptor is closed, because the threads that use the descriptor do not exist in
/// the child. An open copy could keep a connection open or a file locked after the parent has
/// exited.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over the descriptor that `open` returns. If `open` returns -1, the object is empty and
  /// errno is unchanged. The process cannot fork during the call, so `open` must not block.
  explicit Descriptor(FunctionRef<int()> open);
  /// Takes over the two descriptors that `open` writes. If `open` returns false, both objects are
  /// empty. The process cannot fork during the call.
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
