#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "comm/operation.hpp"
#include "simulation/scheduler.hpp"

namespace simulation {

using muonrt::OperationKind;
using muonrt::Status;

/// An operation that all ranks run, in the order of its lane. A lane is a thread of each rank.
struct Step {
  OperationKind kind;
  int comm;       // the communicator, numbered in the order of creation; 0 is the first
  int made = -1;  // kDuplicate: the new communicator
  int64_t n = 0;  // bytes or values
  uint64_t seed = 0;
  /// Bytes of the message of an exchange; 0: none.
  int64_t bytes(int from, int to) const;
  /// True if no rank can end the operation before all have begun it.
  bool meets() const {
    return kind == OperationKind::kDuplicate || (kind != OperationKind::kExchange && n > 0);
  }
};

/// What one rank does wrong, or what happens to it, at a step of a lane.
struct Fault {
  enum class Kind {
    kAbort,        // another thread aborts the communicator
    kAbortAll,     // the same with its duplicates
    kWrongSize,    // an exchange with messages of another size
    kBadArgument,  // a message without an address
    kLeave,        // the rank destroys all its communicators
    kPause,        // the rank comes late
    kKill,         // TCP: the process ends; its sockets are closed
    kMachineDies,  // TCP: the process ends without a trace
    kDisconnect,   // TCP: a connection of the rank is reset
    kPartition,    // TCP: messages from and to the rank are delayed
    kFlip,         // TCP: a bit of a message from the rank is flipped
  };
  Kind kind = Kind::kPause;
  int rank = 0, lane = 0, step = 0;  // step -1: before the rank connects
  int64_t delay = 0;  // ns, from the beginning of the step; kPause, kPartition: the duration
  int64_t calls = 0;  // kKill, kMachineDies: the number of calls of the system that it survives
  Status status = Status::kAborted;  // kAbort, kAbortAll
};

/// The network between the processes.
struct Weather {
  static constexpr int64_t kLeastWindow = 4096;
  int64_t least_latency = 0, most_latency = 0;
  int64_t window = 1 << 16;      // bytes that a connection holds
  bool short_transfers = false;  // reads and writes of a part
  int unauthenticated = 0;       // processes that do not know the secret
};

/// All that a seed decides before the world begins.
struct Plan {
  Plan(uint64_t seed, bool tcp);

  uint64_t seed;
  bool tcp;
  int size;
  int64_t timeout_ms;
  int comms = 1;
  std::vector<std::vector<Step>> lanes;
  std::vector<Fault> faults;
  Weather weather;
  bool in_folder = false;            // TCP: the ranks find each other in a folder
  bool lingers;                      // all ranks keep their communicators for a while
  std::vector<int64_t> first_pause;  // by rank: ns before it connects

  bool is_short() const { return timeout_ms < 60'000; }
  int64_t connect_timeout_ms() const { return timeout_ms + 30'000; }
  bool leaves(int rank) const;
  bool has_network_fault() const;
  /// The lane that runs operations on a communicator.
  int lane_of(int comm) const {
    return comm == 1 && lanes.size() > 1 ? 1 : made_at_[static_cast<size_t>(comm)].lane;
  }
  /// The statuses that operations on a communicator may return.
  std::set<Status> allowed(int comm) const;
  std::string text() const;

 private:
  void draw_lanes(Random& random);
  void draw_faults(Random& random);
  bool is_affected(int comm, const Fault& fault) const;
  struct Place {
    int lane = 0, step = -1, parent = -1;
  };
  std::vector<Place> made_at_;  // by communicator
};

const char* name_of(Fault::Kind kind);

}  // namespace simulation
