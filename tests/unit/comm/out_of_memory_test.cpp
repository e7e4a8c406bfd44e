// Each allocation of two steps fails in turn. Only allocations with operator new fail, and GEMMs
// are portable, because other libraries do not handle failed allocations.

#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <mutex>
#include <thread>

#include "base/text.hpp"
#include "comm/host_comm.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/mailbox_transport.hpp"
#include "comm/tcp/tcp_mailbox.hpp"
#include "support/bits_cases.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/faults/failing_new.hpp"
#include "support/numerics/gradient_cases.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"
#include "support/world.hpp"

using namespace muonrt;
using support::AllocationFailure;
using support::refusal;

namespace {

/// The result of a run in which an allocation of one rank fails.
struct Ended {
  std::string wrong;
  bool fired = false;
  int64_t failed_steps = 0;  // steps that were out of memory
  world::Tensors tensors;
};

/// A fault of the second step. The step is repeated without it.
struct Fault {
  Status status = Status::kOk;  // the expected status
  std::function<void(world::Rank&, int rank)> before, after;
};

/// Runs two steps, each repeated until it is committed, and compares the statuses of all ranks.
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
          return;  // the statuses show the problem
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

/// Counts over all runs.
struct Swept {
  int64_t allocations = 0, rejected = 0;
};

/// Lets each allocation of both steps fail in turn.
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

/// A case with all features of a step.
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
    // If a stream's queue is full, it grows, or the step waits for it.
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE(
    "out of memory: over TCP a message that arrives early ends all ranks, which name the rank "
    "without memory",
    "[unit][tcp]") {
  std::vector<Socket> router(3), ends(3);
  for (size_t r = 1; r < 3; ++r) std::tie(router[r], ends[r]) = socket_pair();
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int r = 0; r < 3; ++r) {
    std::vector<Socket> mine;
    if (r > 0) mine.push_back(std::move(ends[static_cast<size_t>(r)]));
    ranks.push_back(make_mailbox_transport(
        make_mailbox_over(r, 3, r == 0 ? std::move(router) : std::move(mine))));
    ranks.back()->set_timeout_ms(20'000);
  }
  refusal.disarm();
  AllocationFailure::mark(false);
  refusal.begin_drought();
  const auto errors = transport_test::on_ranks(3, [&](int r) {
    AllocationFailure::mark(false);
    Transport& mine = *ranks[static_cast<size_t>(r)];
    char byte = 0, all[3];
    const SendTo send{1, &byte, 1}, call{0, &byte, 1};
    const ReceiveFrom first{0, &byte, 1}, second{2, &byte, 1};
    // Rank 0 sends after it has a message of rank 2, so the message of rank 2 to rank 1 is earlier.
    if (r == 2) mine.exchange({&send, 1}, {});
    if (r == 2) mine.exchange({&call, 1}, {});
    if (r == 0) mine.exchange({}, {&second, 1});
    if (r == 0) mine.exchange({&send, 1}, {});
    if (r == 1) mine.exchange({}, {&first, 1});
    if (r == 1) mine.exchange({}, {&second, 1});
    mine.allgather(&byte, all, 1);
  });
  refusal.disarm();
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->status() == Status::kOutOfMemory);
  }
  CHECK_THAT(errors[1]->message(),
             Catch::Contains("rank 1 is out of memory for messages that arrived early"));
  for (const size_t other : {0, 2}) CHECK(errors[other]->rank() == 1);
  ranks.clear();
}

namespace {

constexpr uint64_t kPosted = 1, kEarly = 2, kMark = 3;

/// Rank 1 of three ranks, which has entered two channels, and rank 0's end of its connection.
struct Rank1 {
  Socket router;
  std::shared_ptr<Mailbox> mailbox;
  Rank1() {
    refusal.disarm();
    AllocationFailure::mark(false);
    auto [mine, end] = socket_pair();
    router = std::move(mine);
    std::vector<Socket> connection(1);
    connection[0] = std::move(end);
    mailbox = make_mailbox_over(1, 3, std::move(connection));
    for (const uint64_t channel : {kPosted, kMark}) mailbox->enter(channel);
  }
  ~Rank1() { refusal.disarm(); }
  void put(const FrameHeader& head, const void* content) const {
    const auto bytes = static_cast<size_t>(head.payload_bytes);
    REQUIRE(send(router.fd(), &head, sizeof head, 0) == ssize_t{sizeof head});
    REQUIRE((bytes == 0 || send(router.fd(), content, bytes, 0) == head.payload_bytes));
  }
};

}  // namespace

TEST_CASE(
    "out of memory: over TCP an early message ends only its channel, or all channels if its "
    "channel "
    "was not entered",
    "[unit][tcp]") {
  for (const bool entered : {true, false}) {
    const Rank1 rank;
    if (entered) rank.mailbox->enter(kEarly);
    refusal.begin_drought();
    char sent = 7, got = 0;
    rank.put(message_frame(kEarly, 0, 1, &sent, 1, 0), &sent);
    rank.put(message_frame(kPosted, 0, 1, &sent, 1, 0), &sent);
    const auto outcome = transport_test::on_ranks(1, [&](int) {
      AllocationFailure::mark(false);
      rank.mailbox->receive(kPosted, 0, &got, 1, Deadline::in_ms(20'000));
    })[0];
    CHECK(!outcome == entered);
    const auto error = entered ? rank.mailbox->published_error(kEarly) : outcome;
    REQUIRE(error);
    CHECK(error->status() == Status::kOutOfMemory);
    CHECK_THAT(error->message(), Catch::Contains("rank 1 is out of memory"));
  }
}

TEST_CASE("out of memory: over TCP a paused sender resumes if kResume follows an early message",
          "[unit][tcp]") {
  const Rank1 rank;
  rank.mailbox->enter(kEarly);
  rank.put(control_frame(FrameKind::kPause, 0, 2, 1), nullptr);
  const ErrorFrameHeader stop{static_cast<int32_t>(Status::kAborted), -1};
  rank.put(control_frame(FrameKind::kError, kMark, 0, kToAll, &stop, sizeof stop), &stop);
  while (!rank.mailbox->published_error(kMark))
    std::this_thread::yield();  // wait until all earlier frames are read
  refusal.begin_drought();
  char byte = 7;
  rank.put(message_frame(kEarly, 0, 1, &byte, 1, 0), &byte);
  rank.put(control_frame(FrameKind::kResume, 0, 2, 1), nullptr);
  rank.mailbox->send(kPosted, 2, &byte, 1, Deadline::in_ms(20'000));
  CHECK(rank.mailbox->published_error(kEarly)->status() == Status::kOutOfMemory);
}

TEST_CASE("out of memory: over TCP messages for a channel that was left need no memory",
          "[unit][tcp]") {
  const Rank1 rank;
  rank.mailbox->enter(kEarly);
  rank.mailbox->leave(kEarly);
  refusal.begin_drought();
  char sent = 7, got = 0;
  rank.put(message_frame(kEarly, 0, 1, &sent, 1, 0), &sent);
  rank.put(message_frame(kPosted, 0, 1, &sent, 1, 0), &sent);
  CHECK(transport_test::text_of(transport_test::on_ranks(1, [&](int) {
          AllocationFailure::mark(false);
          rank.mailbox->receive(kPosted, 0, &got, 1, Deadline::in_ms(20'000));
        })) == "");
  CHECK(got == sent);
  const auto left = rank.mailbox->published_error(kEarly);
  CHECK((left && left->status() == Status::kInvalidState));
}
#endif
