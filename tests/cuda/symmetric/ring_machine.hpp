#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

// The blocks of a cluster as a ring of stages sees them: barriers, memory, copies and arrivals that
// are under way, threads that go through programs without branches. Whoever can go on may be the
// next; schedules differ in whom they prefer.
namespace ring_model {

/// A barrier as mbarrier has it: a phase ends when all have arrived and all announced units came.
class Barrier {
 public:
  explicit Barrier(int arrivals = 0) : arrivals_(arrivals), pending_(arrivals) {}
  void arrive(int announced = 0) {
    units_ += announced;
    --pending_;
    settle();
  }
  void come() {
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

/// What a unit of shared memory holds: 64 rows of a stage.
struct Content {
  int tile = -1, depth = -1, part = -1;
  bool operator==(const Content&) const = default;
};
constexpr int kUnits = 6;  // of a stage

/// Units of a stage, and what they hold or are to hold.
struct Pieces {
  struct Piece {
    int unit;
    Content content;
  };
  void add(int unit, Content content) {
    list.at(static_cast<size_t>(count)) = {unit, content};
    ++count;
  }
  const Piece* begin() const { return list.data(); }
  const Piece* end() const { return list.data() + count; }

  std::array<Piece, kUnits> list = {};
  int count = 0;
};

enum class Name { kFull, kEmpty, kPeerEmpty, kMeeting };

struct Action {
  enum class Kind {
    kWait,     // until the phase of `parity` has ended
    kArrive,   // announces `units`; at another block's barrier some time later
    kCopy,     // of `pieces` begins, to all of `blocks`; they come one by one
    kRead,     // begins; the pieces must be there
    kReadEnd,  // they must be there still
    kWrite,
  };
  Kind kind;
  Name barrier = Name::kFull;
  int stage = 0;
  unsigned blocks = 0;  // a bit each
  uint32_t parity = 0;
  int units = 0;
  Pieces pieces = {};
};
using Program = std::vector<Action>;

/// What a launch of a kernel has: stages, arrivals of a phase, a program for each thread.
struct Launch {
  int ring = 0;
  int full = 0, empty = 0, peer_empty = 1;
  std::vector<std::vector<Program>> blocks;
};

class Machine {
 public:
  /// @param seed  decides the schedule and everything in it.
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
    meeting_ = Barrier(threads);
    order_ = static_cast<Order>(random_() % 4);
    haste_ = static_cast<Haste>(random_() % 4);
    draw_priorities();
  }

  /// What went wrong, or nothing.
  std::string run() {
    while (wrong_.empty()) {
      if (order_ == Order::kChanging && random_() % 32 == 0) draw_priorities();
      const int next = order_ == Order::kUniform ? any() : first();
      if (next < 0) break;
      const auto at = static_cast<size_t>(next);
      if (at < threads_.size()) {
        step(threads_[at]);
      } else {
        land(at - threads_.size());
      }
    }
    return wrong_;
  }

 private:
  enum class Order { kUniform, kFixed, kChanging, kOneStarves };
  enum class Haste { kMixed, kLate, kEarly, kSomeLate };  // of what is under way

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
    int arrivals;  // of its own, under way
    uint32_t priority;
  };
  /// A unit of a copy, or an arrival if there is none, on its way.
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
    const bool late = haste_ == Haste::kLate || (haste_ == Haste::kSomeLate && drawn % 8 == 0);
    return late                      ? 2 + drawn / 4
           : haste_ == Haste::kMixed ? 2 + drawn / 4 * 3
                                     : (7u << 29) + drawn / 8;
  }

  bool ended(const Thread& thread) const { return thread.at == thread.program->size(); }
  Barrier& barrier(int block, Name name, int stage) {
    if (name == Name::kMeeting) return meeting_;
    return blocks_[static_cast<size_t>(block)]
        .barriers[static_cast<size_t>(name)][static_cast<size_t>(stage)];
  }
  Unit& unit(int block, int stage, int unit) {
    return blocks_[static_cast<size_t>(block)].units[static_cast<size_t>(stage * kUnits + unit)];
  }

  bool can_go_on(const Thread& thread) {
    if (ended(thread)) return false;
    const Action& action = (*thread.program)[thread.at];
    if (action.kind == Action::Kind::kWait)
      return barrier(thread.block, action.barrier, action.stage).passed(action.parity);
    // Who meets the others releases what it has done before.
    return action.barrier != Name::kMeeting || thread.arrivals == 0;
  }

  /// The number of a thread that can go on, or of a message behind the threads; -1 if all have
  /// ended or nobody can.
  int any() {
    const size_t all = threads_.size() + messages_.size();
    for (int tries = 0; tries < 16; ++tries) {
      const size_t at = random_() % all;
      if (at >= threads_.size() || can_go_on(threads_[at])) return static_cast<int>(at);
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
      if (can_go_on(threads_[i])) offer(i, threads_[i].priority);
    for (size_t i = 0; i < messages_.size(); ++i) offer(threads_.size() + i, messages_[i].priority);
    if (best < 0) look_back();
    return best;
  }
  void look_back() {
    for (const Thread& thread : threads_)
      if (!ended(thread)) wrong_ = "nobody can go on";
    for (const Block& block : blocks_)
      for (const Barrier& full : block.barriers[static_cast<size_t>(Name::kFull)])
        if (wrong_.empty() && !full.between_phases()) wrong_ = "a fill is left half";
  }

  void step(Thread& thread) {
    const Action& action = (*thread.program)[thread.at];
    const auto index = static_cast<size_t>(&thread - threads_.data());
    using Kind = Action::Kind;
    for (int block = 0; block < static_cast<int>(blocks_.size()); ++block) {
      if ((action.blocks >> block & 1u) == 0) continue;
      if (action.kind == Kind::kArrive) arrive(action, block, index);
      if (action.kind == Kind::kCopy)
        for (const auto& [place, content] : action.pieces)
          messages_.push_back(
              {block, action.stage, Name::kFull, place, content, index, priority_of_message()});
      if (action.kind == Kind::kRead || action.kind == Kind::kReadEnd)
        read(action, block, action.kind == Kind::kRead);
      if (action.kind == Kind::kWrite)
        for (const auto& [place, content] : action.pieces)
          put(unit(block, action.stage, place), content);
    }
    ++thread.at;
    if (ended(thread)) --blocks_[static_cast<size_t>(thread.block)].running;
  }
  void arrive(const Action& action, int block, size_t from) {
    if (action.barrier == Name::kMeeting || block == threads_[from].block) {
      barrier(block, action.barrier, action.stage).arrive(action.units);
      return;
    }
    ++threads_[from].arrivals;
    messages_.push_back({block, action.stage, action.barrier, -1, {}, from, priority_of_message()});
  }
  void read(const Action& action, int block, bool begins) {
    if (blocks_[static_cast<size_t>(block)].running == 0)
      wrong_ = "the memory of a block that has ended is read";
    for (const auto& [place, content] : action.pieces) {
      Unit& u = unit(block, action.stage, place);
      if (u.content != content)
        wrong_ = begins ? "a stage is read that holds something else"
                        : "a stage changed while it was read";
      u.readers += begins ? 1 : -1;
    }
  }
  void put(Unit& u, Content content) {
    if (u.readers > 0) wrong_ = "a stage is overwritten while it is read";
    u.content = content;
  }
  void land(size_t at) {
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
      counts.come();
    }
  }

  const Launch& launch_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<Thread> threads_;
  std::vector<Message> messages_;
  Barrier meeting_;
  Order order_;
  Haste haste_;
  std::string wrong_;
};

}  // namespace ring_model
