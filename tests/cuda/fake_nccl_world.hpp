#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control.hpp"
#include "cuda/fake_nccl.hpp"

/// What the ranks of the fake NCCL have in common; under the machine's lock.
namespace fake_nccl {

using namespace muonrt::cuda;

struct World;

struct Member {
  World* world = nullptr;
  int rank = 0, device = 0, polls = 0;  // polls: how often it still says "in progress"
  bool connected = false, aborted = false, gone = false;
  std::atomic<bool> busy = false;
  int splits = 0;
  int64_t reductions = 0;
  std::map<int, int64_t> sent, received;  // messages by peer
  std::vector<std::string> log;
};

/// Work of one rank that others wait for.
struct Part {
  Member* member = nullptr;
  cudaStream_t stream = nullptr;
  int64_t position = -1;
  bool reached = false;

  bool reach() {
    if (member->aborted) return false;
    return reached = reached || emulator::reach(stream, position);
  }
};

struct Message {
  std::shared_ptr<Part> sender, receiver;
  const void* from = nullptr;
  void* to = nullptr;
  size_t sent = 0, expected = 0;
  bool done = false;
};

struct Reduction {
  std::map<int, std::shared_ptr<Part>> parts;
  std::map<int, std::pair<const void*, void*>> buffers;
  size_t count = 0;
  NcclType type = kNcclInt64;
  NcclOp op = kNcclSum;
  bool done = false;
};

struct World {
  int size = 0, joined = 0;
  std::map<std::pair<int, int>, std::map<int64_t, std::shared_ptr<Message>>> messages;
  std::map<int64_t, std::shared_ptr<Reduction>> reductions;
};

struct State {
  std::map<std::string, std::unique_ptr<World>> worlds;  // by id
  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::string> problems;
  std::set<int> failing, stalled;
  int64_t ids = 0;
  Counts counts;
};

inline State& state() {
  static State instance;
  return instance;
}

}  // namespace fake_nccl
