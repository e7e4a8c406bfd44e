#pragma once

#include <chrono>
#include <thread>

#include "base/deadline.hpp"

namespace muonrt::cuda {

/// A wait of polls: without sleep for a millisecond, within which NCCL has mostly taken an
/// operation (from 2.23 on each costs it a thread).
class Patience {
 public:
  void pause() {
    if (Deadline::Clock::now() < rest_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  const Deadline::Clock::time_point rest_ = Deadline::Clock::now() + std::chrono::milliseconds(1);
};

}  // namespace muonrt::cuda
