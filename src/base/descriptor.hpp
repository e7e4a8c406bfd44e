#pragma once

#include <utility>

#include "base/function_ref.hpp"

namespace muonrt {

/// Owns a file descriptor, and closes it in every child that the process forks: a child has none of
/// the threads that use it, and its copy would keep a connection open, or a file locked, after this
/// process has ended. There the object is empty.
class Descriptor {
 public:
  Descriptor() = default;
  /// Takes what `open` returns; -1 leaves the object empty, with errno as `open` set it. The
  /// process cannot fork during the call, so `open` must not block.
  explicit Descriptor(FunctionRef<int()> open);
  /// Both that `open` writes, without a fork in between; where it returns false, two that are
  /// empty.
  static std::pair<Descriptor, Descriptor> pair(FunctionRef<bool(int (&)[2])> open);
  Descriptor(Descriptor&& other) noexcept { *this = std::move(other); }
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int fd() const { return fd_; }
  /// Gives up the descriptor without closing it.
  int release() noexcept;
  explicit operator bool() const { return fd_ >= 0; }

 private:
  friend class Descriptors;

  int fd_ = -1;
  // All that are open, as a list.
  Descriptor* previous_ = nullptr;
  Descriptor* next_ = nullptr;
};

}  // namespace muonrt
