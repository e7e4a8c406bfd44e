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

/// An operation that all ranks run. For each lane, each rank has one thread, which runs the
/// operations of the lane in order.
struct Step {
  OperationKind kind;
  int comm;       // number of the communicator in the order of creation; the first is 0
  int made = -1;  // kDuplicate: the new communicator
  int64_t n = 0;  // number of bytes or values
  uint64_t seed = 0;
  /// Returns the size of an exchange's message in bytes, or 0 if there is no message.
  int64_t bytes(int from, int to) const;
  /// Returns true if no rank can complete the operation before all ranks have begun it.
  bool meets() const {
    return kind == OperationKind::kDuplicate || (kind != OperationKind::kExchange && n > 0);
  }
};

/// An error of one rank, or an event that affects the rank, at a step of a lane.
struct Fault {
  enum class Kind {
    kAbort,        // another thread aborts the communicator
    kAbortAll,     // like kAbort, with all duplicates
    kWrongSize,    // the rank exchanges messages of a different size
    kBadArgument,  // the rank passes a message without an address
    kLeave,        // the rank destroys all its communicators
    kPause,        // the rank begins the step late
    kKill,         // TCP: the process ends; its sockets are closed
    kMachineDies,  // TCP: the process ends without closing its sockets
    kDisconnect,   // TCP: a connection of the rank is reset
    kPartition,    // TCP: messages to and from the rank are delayed
    kFlip,         // TCP: a bit of a message from the rank is flipped
  };
  Kind kind = Kind::kPause;
  int rank = 0, lane = 0, step = 0;  // step -1: before the rank connects
  int64_t delay = 0;  // in ns; kPause, kPartition: the duration, from the beginning of the step
  int64_t calls = 0;  // kKill, kMachineDies: number of system calls until the process ends
  Status status = Status::kAborted;  // kAbort, kAbortAll
};

/// The properties of the network between the processes.
struct Weather {
  static constexpr int64_t kLeastWindow = 4096;
  int64_t least_latency = 0, most_latency = 0;
  int64_t window = 1 << 16;      // capacity of a connection in bytes
  bool short_transfers = false;  // reads and writes may transfer only a part
  int unauthenticated = 0;       // number of processes that do not know the secret
};

/// Everything that the seed determines before the world begins.
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
  bool in_folder = false;  // TCP: the ranks use a folder for their rendezvous
  bool lingers;            // all ranks keep their communicators for some time after their last step
  std::vector<int64_t> first_pause;  // for each rank, the ns before it connects

  bool is_short() const { return timeout_ms < 60'000; }
  int64_t connect_timeout_ms() const { return timeout_ms + 30'000; }
  bool leaves(int rank) const;
  bool has_network_fault() const;
  /// Returns the lane that runs the operations of a communicator.
  int lane_of(int comm) const {
    return comm == 1 && lanes.size() > 1 ? 1 : made_at_[static_cast<size_t>(comm)].lane;
  }
  /// Returns the statuses that operations of a communicator may return.
  std::set<Status> allowed(int comm) const;
  std::string text() const;

 private:
  void draw_lanes(Random& random);
  void draw_faults(Random& random);
  bool is_affected(int comm, const Fault& fault) const;
  struct Place {
    int lane = 0, step = -1, parent = -1;
  };
  std::vector<Place> made_at_;  // for each communicator
};

const char* name_of(Fault::Kind kind);

}  // namespace simulation
