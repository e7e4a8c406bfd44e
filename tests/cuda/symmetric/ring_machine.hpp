#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

// A model of a cluster's thread blocks, which use a ring of stages. The model has barriers, memory,
// copies and arrivals in flight, and threads that run programs without branches. At each step, any
// thread that can continue may run next. Each schedule prefers different threads.
namespace ring_model {

/// A barrier like mbarrier. A phase ends when all arrivals and all announced units have been
/// counted.
class Barrier {
 public:
  explicit Barrier(int arrivals = 0) : arrivals_(arrivals), pending_(arrivals) {}
  void arrive(int announced = 0) {
    units_ += announced;
    --pending_;
    settle();
  }
  void complete_unit() {
    --units_;
    settle();
  }
  bool passed(uint32_t parity) const { return phase_ != parity; }
  bool between_phases() const { return pending_ == arrivals_ && units_ == 0; }

 private:
  void settle() {
    if (pending_ != 0 || units_ != 0) return;
    phase_ ^= 1;
    pending_ = arrivals_;
  }
  int arrivals_ = 0, pending_ = 0, units_ = 0;
  uint32_t phase_ = 0;
};

/// The contents of a unit of shared memory. A unit consists of 64 rows of a stage.
struct Content {
  int tile = -1, depth = -1, part = -1;
  bool operator==(const Content&) const = default;
};
constexpr int kUnits = 7;  // number of units in a stage; the last unit is the index of a counted
                           // job

/// Units of a stage, and their actual or expected contents.
struct Contents {
  struct Entry {
    int unit;
    Content content;
  };
  void add(int unit, Content content) {
    list.at(static_cast<size_t>(count)) = {unit, content};
    ++count;
  }
  const Entry* begin() const { return list.data(); }
  const Entry* end() const { return list.data() + count; }

  std::array<Entry, kUnits> list = {};
  int count = 0;
};

enum class Name { kFull, kEmpty, kPeerEmpty, kClusterSync };

struct Action {
  enum class Kind {
    kWait,     // waits until the phase of `parity` has ended
    kArrive,   // announces `units`; an arrival at another block's barrier is delayed
    kCopy,     // starts a copy to all of `blocks`; the units of `contents` arrive one by one
    kRead,     // starts a read; the units must have `contents`
    kReadEnd,  // ends a read; the units must still have `contents`
    kWrite,
  };
  Kind kind;
  Name barrier = Name::kFull;
  int stage = 0;
  unsigned blocks = 0;  // one bit for each block
  uint32_t parity = 0;
  int units = 0;
  Contents contents = {};
};
using Program = std::vector<Action>;

/// The model of a launch: number of stages, arrivals in a phase, and a program for each thread.
struct Launch {
  int ring = 0;
  int full = 0, empty = 0, peer_empty = 1;
  std::vector<std::vector<Program>> blocks;
};

class Machine {
 public:
  /// @param seed  determines the schedule and all its delays.
  Machine(const Launch& launch, uint64_t seed) : launch_(launch), random_(seed) {
    const auto stages = static_cast<size_t>(launch.ring);
    int threads = 0;
    for (const auto& programs : launch.blocks) {
      Block block;
      block.barriers = {std::vector<Barrier>(stages, Barrier(launch.full)),
                        std::vector<Barrier>(stages, Barrier(launch.empty)),
                        std::vector<Barrier>(stages, Barrier(launch.peer_empty))};
      block.units.resize(stages * kUnits);
      block.running = static_cast<int>(programs.size());
      for (const Program& program : programs) {
        threads_.push_back({static_cast<int>(blocks_.size()), &program, 0, 0, 0});
        ++threads;
      }
      blocks_.push_back(std::move(block));
    }
    cluster_sync_ = Barrier(threads);
    order_ = static_cast<Order>(random_() % 4);
    delay_ = static_cast<Delay>(random_() % 4);
    draw_priorities();
  }

  /// Runs the launch. Returns the first violation, or "" if there is no violation.
  std::string run() {
    while (wrong_.empty()) {
      if (order_ == Order::kChanging && random_() % 32 == 0) draw_priorities();
      const int next = order_ == Order::kUniform ? any() : first();
      if (next < 0) break;
      const auto at = static_cast<size_t>(next);
      if (at < threads_.size()) {
        step(threads_[at]);
      } else {
        complete_message(at - threads_.size());
      }
    }
    return wrong_;
  }

 private:
  enum class Order { kUniform, kFixed, kChanging, kOneStarves };
  // The times for which copies and arrivals are in flight.
  enum class Delay { kMixed, kLong, kShort, kSomeLong };

  struct Unit {
    Content content;
    int readers = 0;
  };
  struct Block {
    std::array<std::vector<Barrier>, 3> barriers;
    std::vector<Unit> units;
    int running = 0;
  };
  struct Thread {
    int block;
    const Program* program;
    size_t at;
    int arrivals;  // arrivals of this thread that are in flight
    uint32_t priority;
  };
  /// A unit of a copy in flight or, if `unit` is -1, an arrival in flight.
  struct Message {
    int block, stage;
    Name barrier;
    int unit;
    Content content;
    size_t from;
    uint32_t priority;
  };

  void draw_priorities() {
    constexpr uint32_t kMiddle = 1u << 31;
    for (Thread& thread : threads_)
      thread.priority = kMiddle + static_cast<uint32_t>(random_() >> 33) / 2;
    if (order_ == Order::kOneStarves) threads_[random_() % threads_.size()].priority = 1;
  }
  uint32_t priority_of_message() {
    const auto drawn = static_cast<uint32_t>(random_());
    const bool is_long = delay_ == Delay::kLong || (delay_ == Delay::kSomeLong && drawn % 8 == 0);
    return is_long                   ? 2 + drawn / 4
           : delay_ == Delay::kMixed ? 2 + drawn / 4 * 3
                                     : (7u << 29) + drawn / 8;
  }

  bool ended(const Thread& thread) const { return thread.at == thread.program->size(); }
  Barrier& barrier(int block, Name name, int stage) {
    if (name == Name::kClusterSync) return cluster_sync_;
    return blocks_[static_cast<size_t>(block)]
        .barriers[static_cast<size_t>(name)][static_cast<size_t>(stage)];
  }
  Unit& unit(int block, int stage, int unit) {
    return blocks_[static_cast<size_t>(block)].units[static_cast<size_t>(stage * kUnits + unit)];
  }

  bool can_run(const Thread& thread) {
    if (ended(thread)) return false;
    const Action& action = (*thread.program)[thread.at];
    if (action.kind == Action::Kind::kWait)
      return barrier(thread.block, action.barrier, action.stage).passed(action.parity);
    // A thread can enter the cluster's barrier only when its earlier arrivals have been delivered.
    return action.barrier != Name::kClusterSync || thread.arrivals == 0;
  }

  /// Returns the index of a thread that can run, or the index of a message plus the number of
  /// threads. Returns -1 if all threads have ended or none can run.
  int any() {
    const size_t all = threads_.size() + messages_.size();
    for (int tries = 0; tries < 16; ++tries) {
      const size_t at = random_() % all;
      if (at >= threads_.size() || can_run(threads_[at])) return static_cast<int>(at);
    }
    return first();
  }
  int first() {
    int best = -1;
    uint32_t most = 0;
    const auto offer = [&](size_t at, uint32_t priority) {
      if (best < 0 || priority > most) best = static_cast<int>(at), most = priority;
    };
    for (size_t i = 0; i < threads_.size(); ++i)
      if (can_run(threads_[i])) offer(i, threads_[i].priority);
    for (size_t i = 0; i < messages_.size(); ++i) offer(threads_.size() + i, messages_[i].priority);
    if (best < 0) check_end();
    return best;
  }
  void check_end() {
    for (const Thread& thread : threads_)
      if (!ended(thread)) wrong_ = "no thread can run";
    for (const Block& block : blocks_)
      for (const Barrier& full : block.barriers[static_cast<size_t>(Name::kFull)])
        if (wrong_.empty() && !full.between_phases()) wrong_ = "a fill is incomplete";
  }

  void step(Thread& thread) {
    const Action& action = (*thread.program)[thread.at];
    const auto index = static_cast<size_t>(&thread - threads_.data());
    using Kind = Action::Kind;
    for (int block = 0; block < static_cast<int>(blocks_.size()); ++block) {
      if ((action.blocks >> block & 1u) == 0) continue;
      if (action.kind == Kind::kArrive) arrive(action, block, index);
      if (action.kind == Kind::kCopy)
        for (const auto& [unit_index, content] : action.contents)
          messages_.push_back({block, action.stage, Name::kFull, unit_index, content, index,
                               priority_of_message()});
      if (action.kind == Kind::kRead || action.kind == Kind::kReadEnd)
        read(action, block, action.kind == Kind::kRead);
      if (action.kind == Kind::kWrite)
        for (const auto& [unit_index, content] : action.contents)
          put(unit(block, action.stage, unit_index), content);
    }
    ++thread.at;
    if (ended(thread)) --blocks_[static_cast<size_t>(thread.block)].running;
  }
  void arrive(const Action& action, int block, size_t from) {
    if (action.barrier == Name::kClusterSync || block == threads_[from].block) {
      barrier(block, action.barrier, action.stage).arrive(action.units);
      return;
    }
    ++threads_[from].arrivals;
    messages_.push_back({block, action.stage, action.barrier, -1, {}, from, priority_of_message()});
  }
  void read(const Action& action, int block, bool begins) {
    if (blocks_[static_cast<size_t>(block)].running == 0)
      wrong_ = "the memory of a block that has ended is read";
    for (const auto& [unit_index, content] : action.contents) {
      Unit& u = unit(block, action.stage, unit_index);
      if (u.content != content)
        wrong_ =
            begins ? "a stage with other content is read" : "a stage changed while it was read";
      u.readers += begins ? 1 : -1;
    }
  }
  void put(Unit& u, Content content) {
    if (u.readers > 0) wrong_ = "a stage is overwritten while it is read";
    u.content = content;
  }
  void complete_message(size_t at) {
    const Message message = messages_[at];
    messages_[at] = messages_.back();
    messages_.pop_back();
    if (blocks_[static_cast<size_t>(message.block)].running == 0)
      wrong_ = message.unit < 0 ? "an arrival at a block that has ended"
                                : "a copy into a block that has ended";
    Barrier& counts = barrier(message.block, message.barrier, message.stage);
    if (message.unit < 0) {
      --threads_[message.from].arrivals;
      counts.arrive();
    } else {
      put(unit(message.block, message.stage, message.unit), message.content);
      counts.complete_unit();
    }
  }

  const Launch& launch_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<Thread> threads_;
  std::vector<Message> messages_;
  Barrier cluster_sync_;
  Order order_;
  Delay delay_;
  std::string wrong_;
};

}  // namespace ring_model
