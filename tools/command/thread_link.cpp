#include "command/thread_link.hpp"

#include <chrono>
#include <thread>

#include "api/handles.hpp"

namespace muonrt::tool {

ThreadGroupHandle make_thread_group(int ranks, const ThreadLink& link) {
  ThreadFaults faults;
  if (link.given()) {
    faults.before_delivery = [link](const ThreadMessage& message) {
      const double seconds =
          link.message_seconds + (link.bytes_per_second > 0
                                      ? static_cast<double>(message.bytes) / link.bytes_per_second
                                      : 0);
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    };
  }
  return ThreadGroupHandle(
      api::release_handle(std::make_unique<muonrt_thread_group>(ThreadGroup(ranks, faults))));
}

}  // namespace muonrt::tool
