#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.hpp"

namespace muonrt {

class Transport;

/// The duplicates of one transport, which hear of its abort: those that are there, and those to
/// come. Threads: any.
class DuplicateRegistry {
 public:
  void abort(Status status, const std::string& message) noexcept;

 private:
  friend class DuplicateRegistration;
  std::mutex mutex_;
  std::list<Transport*> list_;
  std::optional<Error> aborted_;
};

/// A transport's place among the duplicates of another one, from `join` to `leave`.
class DuplicateRegistration {
 public:
  /// So that `join` takes no memory.
  void reserve() { own_.emplace_back(); }
  /// Whatever the order of `join` and an abort, the transport is told: both look under one lock.
  void join(std::shared_ptr<DuplicateRegistry> all, Transport& self);
  /// Afterwards nobody tells it.
  void leave() noexcept;

 private:
  std::shared_ptr<DuplicateRegistry> all_;
  std::list<Transport*> own_;  // its element, until `join`
  std::list<Transport*>::iterator at_;
};

}  // namespace muonrt
