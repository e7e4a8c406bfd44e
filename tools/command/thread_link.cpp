#include "command/thread_link.hpp"

#include <chrono>
#include <thread>

#include "api/handles.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

void add_link_options(CLI::App& command, ThreadLink& link) {
  command
      .add_option("--link-bytes", link.bytes_per_second,
                  "bytes/s that a rank receives from other threads (0: as fast as memory)")
      ->check(nonnegative());
  command
      .add_option("--link-message-seconds", link.message_seconds,
                  "seconds of a message between threads in addition to its bytes")
      ->check(nonnegative());
}

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
