#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "muonrt/comm.h"

namespace muonrt::tool {

/// A simulated network between ranks that are threads. It delays each message by the time that a
/// network with this bandwidth and latency would need, and each rank receives one message at a
/// time.
struct ThreadLink {
  double bytes_per_second = 0, message_seconds = 0;  // 0 adds no delay
  bool given() const { return bytes_per_second > 0 || message_seconds > 0; }
};

struct DestroyThreadGroup {
  void operator()(muonrt_thread_group_t* group) const { muonrt_thread_group_destroy(group); }
};
using ThreadGroupHandle = std::unique_ptr<muonrt_thread_group_t, DestroyThreadGroup>;

/// Adds --link-bytes and --link-message-seconds.
void add_link_options(CLI::App& command, ThreadLink& link);

/// Creates a group of threads whose messages `link` delays.
ThreadGroupHandle make_thread_group(int ranks, const ThreadLink& link);

}  // namespace muonrt::tool
