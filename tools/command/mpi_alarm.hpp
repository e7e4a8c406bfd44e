#pragma once

#include <unistd.h>

#include <cmath>
#include <csignal>

namespace muonrt::tool {

/// Exits the process if this object still exists after `seconds`. MPI calls have no timeout, so
/// they could otherwise wait forever.
class MpiAlarm {
 public:
  explicit MpiAlarm(double seconds) {
    std::signal(SIGALRM, [](int) {
      constexpr char kWhat[] =
          "muonrt: MPI waits for a rank that does not respond; stopping all ranks\n";
      static_cast<void>(!::write(STDERR_FILENO, kWhat, sizeof kWhat - 1));
      _exit(1);
    });
    alarm(static_cast<unsigned>(std::ceil(seconds)));
  }
  ~MpiAlarm() { alarm(0); }
  MpiAlarm(const MpiAlarm&) = delete;
  MpiAlarm& operator=(const MpiAlarm&) = delete;
};

}  // namespace muonrt::tool
