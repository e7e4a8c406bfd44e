// Memory is refused at every place of a step, and at many of a creation. Only what C++ allocates is
// refused, and products are muonrt's own: other libraries do not survive it.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>

#include "base/text.hpp"
#include "comm/host_comm.hpp"
#include "muonrt/comm.h"
#include "support/one_matrix.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"
#include "support/world.hpp"

using namespace muonrt;

namespace {

/// Which allocation is refused: of those that the threads of one rank make, and the streams of all.
class Refusal {
 public:
  /// @param nth  from 0.
  void arm(int64_t nth) {
    fired_ = false;
    left_ = nth;
  }
  void disarm() { left_ = kNever; }
  bool fired() const { return fired_; }
  /// This thread is a rank's own: counted, or not. Others are streams.
  static void mark(bool counted) { of_thread_ = counted ? Thread::kCounted : Thread::kOther; }
  bool refuses() {
    if (left_ == kNever || of_thread_ == Thread::kOther) return false;
    if (left_.fetch_sub(1) != 0) return false;
    fired_ = true;
    left_ = kNever;
    return true;
  }

 private:
  enum class Thread { kStream, kCounted, kOther };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
  std::atomic<int64_t> left_ = kNever;
  std::atomic<bool> fired_ = false;
  static inline thread_local Thread of_thread_ = Thread::kStream;
};

constinit Refusal refusal;

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = refusal.refuses() ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

/// What both ranks of a world see, whose `faulty` one is refused an allocation.
struct Ended {
  std::string wrong;
  bool fired = false;
  int64_t refused = 0;  // steps that failed for want of memory
  world::Tensors tensors;
};

/// What the second step is made to meet before it succeeds.
struct Trouble {
  Status status = Status::kOk;  // in place of OK
  std::function<void(world::Rank&, int rank)> before, after;
};

/// Two steps, each repeated until it is committed; the ranks compare what they have seen.
Ended run(const world::Case& c, const Trouble& trouble, int faulty, int64_t nth) {
  Ended out;
  std::vector<std::string> seen(static_cast<size_t>(c.world));
  std::vector<std::vector<bool>> there;
  std::mutex mutex;
  refusal.disarm();
  Refusal::mark(false);
  const auto body = [&](Comm& comm) {
    Refusal::mark(false);
    comm.set_timeout_ms(20'000);
    world::Rank rank(c, comm);
    std::string& mine = seen[static_cast<size_t>(comm.rank())];
    char ready = 0, all[8];
    StepReport report;
    for (int step = 0; step < c.steps; ++step) {
      bool spoilt = step == 1 && trouble.before;
      for (int64_t tries = 0; rank.optimizer().steps() == step && tries < 4; ++tries) {
        rank.fill_gradients(step);
        if (spoilt) trouble.before(rank, comm.rank());
        comm.allgather(&ready, all, 1);
        if (step == 0 && tries == 0 && comm.rank() == faulty && nth >= 0) refusal.arm(nth);
        Status status = Status::kOk;
        const int64_t before = rank.optimizer().steps();
        try {
          Refusal::mark(comm.rank() == faulty);
          status = rank.step_only(step, report);
        } catch (const Error& error) {
          status = error.status();
        }
        Refusal::mark(false);
        if (spoilt && trouble.after) trouble.after(rank, comm.rank());
        const bool stepped = rank.optimizer().steps() != before;
        mine += cat(" ", status_name(status), stepped ? "+1" : "");
        const bool expected = status == (spoilt ? trouble.status : Status::kOk);
        if ((!expected && status != Status::kOutOfMemory) || stepped != (status == Status::kOk))
          return;  // the text says so
        spoilt = spoilt && status == Status::kOutOfMemory;
      }
    }
    comm.allgather(&ready, all, 1);
    if (comm.rank() == faulty) refusal.disarm();
    comm.allgather(&ready, all, 1);
    const std::lock_guard lock(mutex);
    if (!rank.add_to(out.tensors, there)) out.wrong += "replicas differ; ";
  };
  try {
    world::on_ranks(c.world, body);
  } catch (const std::exception& error) {
    out.wrong += cat(error.what(), "; ");
  }
  out.fired = refusal.fired();
  refusal.disarm();
  for (const std::string& words : seen) {
    if (words != seen[0]) out.wrong += cat("ranks differ:", seen[0], " and", words);
  }
  const std::string oom = status_name(Status::kOutOfMemory);
  for (size_t at = seen[0].find(oom); at != std::string::npos; at = seen[0].find(oom, at + 1))
    ++out.refused;
  std::string expected = cat(" MUONRT_OK+1 ", trouble.before ? status_name(trouble.status) : "",
                             trouble.before ? " " : "", "MUONRT_OK+1");
  std::string well = seen[0];
  for (size_t at = 0; (at = well.find(" " + oom)) != std::string::npos;)
    well.erase(at, oom.size() + 1);
  if (well != expected) out.wrong += cat("ended as", seen[0]);
  return out;
}

/// Every allocation of both steps is refused in turn.
void check_every(world::Case c, const Trouble& trouble = {}) {
  c.steps = 2;
  c.settings.portable_gemm = true;
  const Ended well = run(c, trouble, 0, -1);
  REQUIRE(well.wrong == std::string());
  for (int faulty = 0; faulty < c.world; ++faulty) {
    int64_t voted_down = 0, nth = 0;
    for (bool fired = true; fired; ++nth) {
      const Ended ended = run(c, trouble, faulty, nth);
      CAPTURE(faulty, nth);
      CHECK(ended.wrong == std::string());
      CHECK((ended.tensors == well.tensors));
      CHECK(ended.refused <= 1);
      fired = ended.fired;
      voted_down += ended.refused;
      REQUIRE(nth < 2000);
    }
    INFO("rank " << faulty << ": " << nth - 1 << " allocations");
    CHECK(voted_down > 0);
  }
}

world::Case matrices(int ranks) {
  world::Case c = world::on_mesh({ranks});
  c.params = {world::matrix("w", {6, 5}, {{PlacementKind::kShard, 0, 1}}),
              world::matrix("same", {4, 6}, {})};
  world::Param bias;
  bias.name = "bias";
  bias.shape = {7};
  bias.role = Role::kAdamW;
  c.params.push_back(bias);
  return c;
}

/// With all that a step may do.
world::Case everything(int ranks) {
  world::Case c = matrices(ranks);
  c.settings.clip_norm = 0.5;
  c.settings.health_every = 1;
  c.settings.replica_check = ReplicaCheck::kEvery;
  c.settings.chunk_bytes = 4 * 6 * 5;
  return c;
}

Trouble skipped() {
  const auto spoil = [](world::Rank& rank, int) {
    std::fill_n(rank.grad(0).begin(), 4, static_cast<unsigned char>(0xff));
  };
  return {Status::kSkipped, spoil, {}};
}

Trouble unequal_replicas() {
  const auto flip = [](world::Rank& rank, int of) { rank.data(1)[0] ^= of == 1; };
  return {Status::kMismatch, flip, flip};
}

Trouble unequal_arguments() {
  const auto scale = [](double by) {
    return [by](world::Rank& rank, int of) {
      if (of != 1) return;
      GroupSettings group = rank.optimizer().settings().groups[0];
      group.momentum *= by;
      rank.optimizer().set_group(0, group);
    };
  };
  return {Status::kMismatch, scale(0.5), scale(2.0)};
}

}  // namespace

TEST_CASE("out of memory: a step of one rank is voted down or committed, whatever is refused",
          "[unit][optimizer]") {
  check_every(matrices(1));
  check_every(everything(1), skipped());
}

TEST_CASE("out of memory: every rank sees the same, and a step repeated gives the same bits",
          "[unit][optimizer]") {
  check_every(matrices(2));
  check_every(everything(2), skipped());
}

TEST_CASE("out of memory: a step that is voted down for another reason tells it, or is repeated",
          "[unit][optimizer]") {
  check_every(everything(2), unequal_replicas());
  check_every(everything(2), unequal_arguments());
}
