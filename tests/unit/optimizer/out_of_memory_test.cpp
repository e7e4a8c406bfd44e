// Runs two steps repeatedly; in each run a different allocation fails. Only allocations with
// operator new fail. The tests use portable GEMMs, because the GEMM libraries do not handle failed
// allocations.

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <mutex>

#include "base/text.hpp"
#include "comm/host_comm.hpp"
#include "support/bits_cases.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/faults/failing_new.hpp"
#include "support/numerics/gradient_cases.hpp"
#include "support/sanitized.hpp"
#include "support/world.hpp"

using namespace muonrt;
using support::AllocationFailure;
using support::refusal;

namespace {

/// The result of a run in which an allocation of one rank fails.
struct Ended {
  std::string wrong;
  bool fired = false;
  int64_t failed_steps = 0;  // number of steps that ran out of memory
  world::Tensors tensors;
};

/// A fault in the second step. The step is then repeated without the fault.
struct Fault {
  Status status = Status::kOk;  // the expected status
  std::function<void(world::Rank&, int rank)> before, after;
};

/// Runs two steps, each of which is repeated until it is committed, and compares the statuses of
/// all ranks.
Ended run(const world::Case& c, const Fault& fault, int faulty, int64_t nth) {
  Ended out;
  std::vector<std::string> seen(static_cast<size_t>(c.world));
  std::vector<std::vector<bool>> there;
  std::mutex mutex;
  refusal.disarm();
  AllocationFailure::mark(false);
  const auto body = [&](Comm& comm) {
    AllocationFailure::mark(false);
    comm.set_timeout_ms(20'000);
    world::Rank rank(c, comm);
    std::string& mine = seen[static_cast<size_t>(comm.rank())];
    char ready = 0, all[8];
    StepReport report;
    for (int step = 0; step < c.steps; ++step) {
      bool faulty_step = step == 1 && fault.before;
      for (int64_t tries = 0; rank.optimizer().steps() == step && tries < 4; ++tries) {
        rank.fill_gradients(step);
        if (faulty_step) fault.before(rank, comm.rank());
        comm.allgather(&ready, all, 1);
        if (step == 0 && tries == 0 && comm.rank() == faulty && nth >= 0) refusal.arm(nth);
        Status status = Status::kOk;
        const int64_t before = rank.optimizer().steps();
        try {
          AllocationFailure::mark(comm.rank() == faulty);
          status = rank.step_only(step, report);
        } catch (const Error& error) {
          status = error.status();
        }
        AllocationFailure::mark(false);
        if (faulty_step && fault.after) fault.after(rank, comm.rank());
        const bool stepped = rank.optimizer().steps() != before;
        mine += cat(" ", status_name(status), stepped ? "+1" : "");
        const bool expected = status == (faulty_step ? fault.status : Status::kOk);
        if ((!expected && status != Status::kOutOfMemory) || stepped != (status == Status::kOk))
          return;  // the caller checks the recorded statuses
        faulty_step = faulty_step && status == Status::kOutOfMemory;
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
  for (const std::string& statuses : seen) {
    if (statuses != seen[0]) out.wrong += cat("ranks differ:", seen[0], " and", statuses);
  }
  const std::string oom = status_name(Status::kOutOfMemory);
  for (size_t at = seen[0].find(oom); at != std::string::npos; at = seen[0].find(oom, at + 1))
    ++out.failed_steps;
  std::string expected = cat(" MUONRT_OK+1 ", fault.before ? status_name(fault.status) : "",
                             fault.before ? " " : "", "MUONRT_OK+1");
  std::string committed = seen[0];
  for (size_t at = 0; (at = committed.find(" " + oom)) != std::string::npos;)
    committed.erase(at, oom.size() + 1);
  if (committed != expected) out.wrong += cat("ended as", seen[0]);
  return out;
}

/// Numbers of allocations and rejected steps in all runs.
struct Swept {
  int64_t allocations = 0, rejected = 0;
};

/// Makes each allocation of both steps fail in turn.
Swept check_every(world::Case c, const Fault& fault = {}) {
  c.steps = 2;
  c.settings.portable_gemm = true;
  const Ended good = run(c, fault, 0, -1);
  REQUIRE(good.wrong == std::string());
  Swept out;
  for (int faulty = 0; faulty < c.world; ++faulty) {
    for (int64_t nth = 0;; ++nth) {
      const Ended ended = run(c, fault, faulty, nth);
      CAPTURE(faulty, nth);
      CHECK(ended.wrong == std::string());
      CHECK((ended.tensors == good.tensors));
      CHECK(ended.failed_steps <= 1);
      if (!ended.fired) break;
      ++out.allocations;
      out.rejected += ended.failed_steps;
      REQUIRE(nth < 2000);
    }
  }
  return out;
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

/// Returns a case that uses all features of a step.
world::Case everything(int ranks) {
  world::Case c = matrices(ranks);
  static const std::vector<float> kLogits = {50, 400, 100, 900};
  world::Param query = world::matrix("query", {12, 6}, {{PlacementKind::kShard, 0, 1}});
  query.qk_clip.kind = QkKind::kQuery;
  query.qk_clip.heads = 4;
  query.qk_clip.kv_heads = 2;
  query.qk_clip.head_dim = 3;
  c.params.push_back(query);
  c.arguments = [](StepArgs& step, int64_t, int) {
    step.qk_logits = kLogits.data();
    step.n_qk_logits = std::ssize(kLogits);
  };
  c.settings.clip_norm = 0.5;
  c.settings.health_every = 1;
  c.settings.replica_check = ReplicaCheck::kEvery;
  c.settings.chunk_bytes = 4 * 6 * 5;
  return c;
}

Fault skipped() {
  const auto spoil = [](world::Rank& rank, int) {
    std::fill_n(rank.grad(0).begin(), 4, static_cast<unsigned char>(0xff));
  };
  return {Status::kSkipped, spoil, {}};
}

Fault unequal_replicas() {
  const auto flip = [](world::Rank& rank, int of) { rank.data(1)[0] ^= of == 1; };
  return {Status::kMismatch, flip, flip};
}

Fault unequal_arguments() {
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

TEST_CASE("out of memory: a step does not allocate, except for its arguments",
          "[unit][optimizer]") {
  for (const int ranks : {1, 2}) {
    CHECK(check_every(matrices(ranks)).allocations == 0);
    CHECK(check_every(everything(ranks)).allocations == 0);
    CHECK(check_every(everything(ranks), skipped()).allocations == 0);
    world::Case eager = everything(ranks);
    eager.settings.commit = CommitMode::kEager;
    CHECK(check_every(eager).allocations == 0);
    // If the queue of a stream is full, the queue grows or the step waits until there is space.
    for (int variant = 0; variant < bits::kVariants; ++variant) {
      const size_t mesh = ranks == 1 ? 0 : 1;
      world::Case c = bits::make(
          {.mesh = mesh, .scheme = variant, .threads = 1 + variant % 2, .variant = variant},
          variant % 3 == 2, 2);
      c.inactive_params.clear();
      CHECK(check_every(c).rejected == 0);
    }
  }
  const Placement partial_grads{PlacementKind::kPartial, 0, 1};
  world::Case c = gradients::make({"sums", {2}, {partial_grads}, {}, {}}, true, 2);
  c.inactive_params.clear();
  CHECK(check_every(c).rejected == 0);
}

TEST_CASE("out of memory: without memory for its arguments a step is rejected, and can be repeated",
          "[unit][optimizer]") {
  for (const int ranks : {1, 2}) {
    world::Case c = everything(ranks);
    c.inactive_params = {{2}, {0}};
    CHECK((check_every(c).rejected > 0 || kSanitized));
  }
}

TEST_CASE("out of memory: a step that is rejected for another reason reports that reason",
          "[unit][optimizer]") {
  for (const Fault& fault : {unequal_replicas(), unequal_arguments()}) {
    const Swept swept = check_every(everything(2), fault);
    CHECK((swept.allocations > 0 || kSanitized));
    CHECK(swept.rejected == 0);
  }
}
