#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace muonrt::api {

/// What was made from a communicator and hears of its abort. It has communicators of its own, which
/// do not feel what befalls this one.
class Offspring {
 public:
  using Tell = std::function<void(Status, const std::string&)>;
  /// Threads: any.
  void abort(Status status, const std::string& message) noexcept {
    const std::lock_guard lock(mutex_);
    for (const Tell& tell : list_) tell(status, message);
  }

 private:
  friend class Membership;
  std::mutex mutex_;
  std::list<Tell> list_;
};

/// One of the offspring, from here to its end: nobody is told who is no longer there.
class Membership {
 public:
  Membership() = default;
  Membership(std::shared_ptr<Offspring> of, Offspring::Tell tell) : of_(std::move(of)) {
    const std::lock_guard lock(of_->mutex_);
    at_ = of_->list_.insert(of_->list_.end(), std::move(tell));
  }
  Membership(Membership&& other) noexcept { *this = std::move(other); }
  Membership& operator=(Membership&& other) noexcept {
    std::swap(of_, other.of_);
    std::swap(at_, other.at_);
    return *this;
  }
  ~Membership() {
    if (!of_) return;
    const std::lock_guard lock(of_->mutex_);
    of_->list_.erase(at_);
  }

 private:
  std::shared_ptr<Offspring> of_;
  std::list<Offspring::Tell>::iterator at_;
};

}  // namespace muonrt::api
