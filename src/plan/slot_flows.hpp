#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/traffic.hpp"

namespace muonrt {

/// Bytes between ranks in the slot at hand.
class SlotFlows {
 public:
  enum Way { kGather, kReturn };

  explicit SlotFlows(size_t ranks) : of_(ranks) {}

  void move(Way way, size_t from, size_t to, int64_t bytes) {
    of_[from].sent[way] += bytes;
    of_[to].received[way] += bytes;
  }
  /// Takes the rank's into `most`, and forgets them.
  void end(size_t rank, SlotLoad& most) {
    const Flow flow = of_[rank];
    of_[rank] = {};
    most.gather_sent = std::max(most.gather_sent, flow.sent[kGather]);
    most.gather_received = std::max(most.gather_received, flow.received[kGather]);
    most.return_sent = std::max(most.return_sent, flow.sent[kReturn]);
    most.return_received = std::max(most.return_received, flow.received[kReturn]);
  }

 private:
  struct Flow {
    int64_t sent[2] = {}, received[2] = {};
  };
  std::vector<Flow> of_;
};

}  // namespace muonrt
