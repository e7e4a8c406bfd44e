#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.hpp"

namespace muonrt {

class Transport;

/// The duplicates of one transport. If the transport is aborted, its duplicates are also aborted,
/// even if they register later. May be used from any thread.
class DuplicateRegistry {
 public:
  /// Aborts all registered duplicates, and each duplicate that registers later.
  void abort(Status status, const std::string& message) noexcept;

 private:
  friend class DuplicateRegistration;
  std::mutex mutex_;
  std::list<Transport*> list_;
  std::optional<Error> aborted_;  // the error of the first abort
};

/// Keeps a transport registered as a duplicate of its original, from join() to leave().
class DuplicateRegistration {
 public:
  /// Allocates the memory for join(), which therefore does not allocate.
  void reserve() { node_.emplace_back(); }
  /// Adds `self` to the registry. Aborts `self` now if the original was already aborted.
  void join(std::shared_ptr<DuplicateRegistry> registry, Transport& self);
  /// Removes the transport from the registry, so that later aborts do not reach it.
  void leave() noexcept;

 private:
  std::shared_ptr<DuplicateRegistry> registry_;
  std::list<Transport*> node_;  // the list element; join() moves it to the registry
  std::list<Transport*>::iterator element_;
};

}  // namespace muonrt
