#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.hpp"

namespace muonrt {

class Transport;

/// The duplicates of one transport. An abort of the transport reaches them, also those that
/// register later. Threads: any.
class DuplicateRegistry {
 public:
  /// Aborts all registered duplicates, and each duplicate that registers later.
  void abort(Status status, const std::string& message) noexcept;

 private:
  friend class DuplicateRegistration;
  std::mutex mutex_;
  std::list<Transport*> list_;
  std::optional<Error> aborted_;  // the first abort
};

/// Registers a transport as a duplicate of another one, from `join` to `leave`.
class DuplicateRegistration {
 public:
  /// Allocates what `join` needs, so that `join` does not allocate.
  void reserve() { node_.emplace_back(); }
  /// Adds `self` to the registry. If the original was aborted before, aborts `self` now.
  void join(std::shared_ptr<DuplicateRegistry> registry, Transport& self);
  /// Removes the transport; later aborts do not reach it.
  void leave() noexcept;

 private:
  std::shared_ptr<DuplicateRegistry> registry_;
  std::list<Transport*> node_;  // the element, until `join` moves it to the registry
  std::list<Transport*>::iterator element_;
};

}  // namespace muonrt
