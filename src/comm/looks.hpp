#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace muonrt {

/// A wait that looks again and again, at first often.
class Looks {
 public:
  void pause() {
    std::this_thread::sleep_for(std::chrono::microseconds(us_));
    waited_us_ += us_;
    us_ = std::min<int64_t>(us_ * 5 / 4 + 1, 10000);
  }
  /// For what is looked at ten times a second.
  bool rarely() {
    if (waited_us_ < 100'000) return false;
    waited_us_ = 0;
    return true;
  }

 private:
  int64_t us_ = 100, waited_us_ = 0;
};

}  // namespace muonrt
