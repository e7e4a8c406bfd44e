// Memory is refused at every place of two steps. Only what C++ allocates is, and products are
// muonrt's own: other libraries do not survive it.

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
  AllocationFailure::mark(false);
  const auto body = [&](Comm& comm) {
    AllocationFailure::mark(false);
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
          AllocationFailure::mark(comm.rank() == faulty);
          status = rank.step_only(step, report);
        } catch (const Error& error) {
          status = error.status();
        }
        AllocationFailure::mark(false);
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

/// Of the ranks' sweeps.
struct Swept {
  int64_t allocations = 0, voted_down = 0;
};

/// Every allocation of both steps is refused in turn.
Swept check_every(world::Case c, const Trouble& trouble = {}) {
  c.steps = 2;
  c.settings.portable_gemm = true;
  const Ended well = run(c, trouble, 0, -1);
  REQUIRE(well.wrong == std::string());
  Swept out;
  for (int faulty = 0; faulty < c.world; ++faulty) {
    for (int64_t nth = 0;; ++nth) {
      const Ended ended = run(c, trouble, faulty, nth);
      CAPTURE(faulty, nth);
      CHECK(ended.wrong == std::string());
      CHECK((ended.tensors == well.tensors));
      CHECK(ended.refused <= 1);
      if (!ended.fired) break;
      ++out.allocations;
      out.voted_down += ended.refused;
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

/// With all that a step may do.
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

TEST_CASE("out of memory: no step fails but by its arguments", "[unit][optimizer]") {
  for (const int ranks : {1, 2}) {
    CHECK(check_every(matrices(ranks)).allocations == 0);
    CHECK(check_every(everything(ranks)).allocations == 0);
    CHECK(check_every(everything(ranks), skipped()).allocations == 0);
    world::Case eager = everything(ranks);
    eager.settings.commit = CommitMode::kEager;
    CHECK(check_every(eager).allocations == 0);
    // Where much is enqueued a stream's queue grows, or is waited for.
    for (int variant = 0; variant < bits::kVariants; ++variant) {
      const size_t mesh = ranks == 1 ? 0 : 1;
      world::Case c = bits::make(
          {.mesh = mesh, .scheme = variant, .threads = 1 + variant % 2, .variant = variant},
          variant % 3 == 2, 2);
      c.inactive_params.clear();
      CHECK(check_every(c).voted_down == 0);
    }
  }
  const Placement partial_grads{PlacementKind::kPartial, 0, 1};
  world::Case c = gradients::make({"sums", {2}, {partial_grads}, {}, {}}, true, 2);
  c.inactive_params.clear();
  CHECK(check_every(c).voted_down == 0);
}

TEST_CASE("out of memory: arguments that find none are voted down, and the step repeated",
          "[unit][optimizer]") {
  for (const int ranks : {1, 2}) {
    world::Case c = everything(ranks);
    c.inactive_params = {{2}, {0}};
    CHECK((check_every(c).voted_down > 0 || kSanitized));
  }
}

TEST_CASE("out of memory: a step that is voted down for another reason tells it",
          "[unit][optimizer]") {
  for (const Trouble& trouble : {unequal_replicas(), unequal_arguments()}) {
    const Swept swept = check_every(everything(2), trouble);
    CHECK((swept.allocations > 0 || kSanitized));
    CHECK(swept.voted_down == 0);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE(
    "out of memory: over TCP a message that comes before the one awaited ends all ranks, which "
    "name the rank without memory",
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
    // Rank 0 sends when rank 2 has called it, whose message to rank 1 has then gone before.
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
             Catch::Contains("rank 1 has no memory for messages that come before it takes them"));
  for (const size_t other : {0, 2}) CHECK(errors[other]->rank() == 1);
  ranks.clear();
}

namespace {

constexpr uint64_t kAwaited = 1, kEarly = 2, kMark = 3;

/// Rank 1 of three, which has entered two channels, and rank 0's end of its connection.
struct Rank1 {
  Socket router;
  std::shared_ptr<Mailbox> mailbox;
  Rank1() {
    refusal.disarm();
    AllocationFailure::mark(false);
    auto [mine, end] = socket_pair();
    router = std::move(mine);
    std::vector<Socket> line(1);
    line[0] = std::move(end);
    mailbox = make_mailbox_over(1, 3, std::move(line));
    for (const uint64_t channel : {kAwaited, kMark}) mailbox->enter(channel);
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
    "out of memory: over TCP what comes early ends its own channel alone, or all where it "
    "was not entered",
    "[unit][tcp]") {
  for (const bool entered : {true, false}) {
    const Rank1 rank;
    if (entered) rank.mailbox->enter(kEarly);
    refusal.begin_drought();
    char sent = 7, got = 0;
    rank.put(message_frame(kEarly, 0, 1, &sent, 1, 0), &sent);
    rank.put(message_frame(kAwaited, 0, 1, &sent, 1, 0), &sent);
    const auto outcome = transport_test::on_ranks(1, [&](int) {
      AllocationFailure::mark(false);
      rank.mailbox->receive(kAwaited, 0, &got, 1, Deadline::in_ms(20'000));
    })[0];
    CHECK(!outcome == entered);
    const auto error = entered ? rank.mailbox->published_error(kEarly) : outcome;
    REQUIRE(error);
    CHECK(error->status() == Status::kOutOfMemory);
    CHECK_THAT(error->message(), Catch::Contains("rank 1 has no memory"));
  }
}

TEST_CASE("out of memory: over TCP a sender goes on whose room comes behind an early message",
          "[unit][tcp]") {
  const Rank1 rank;
  rank.mailbox->enter(kEarly);
  rank.put(control_frame(FrameKind::kPause, 0, 2, 1), nullptr);
  const ErrorFrameHeader stop{static_cast<int32_t>(Status::kAborted), -1};
  rank.put(control_frame(FrameKind::kError, kMark, 0, kToAll, &stop, sizeof stop), &stop);
  while (!rank.mailbox->published_error(kMark))
    std::this_thread::yield();  // all before it has been read
  refusal.begin_drought();
  char byte = 7;
  rank.put(message_frame(kEarly, 0, 1, &byte, 1, 0), &byte);
  rank.put(control_frame(FrameKind::kResume, 0, 2, 1), nullptr);
  rank.mailbox->send(kAwaited, 2, &byte, 1, Deadline::in_ms(20'000));
  CHECK(rank.mailbox->published_error(kEarly)->status() == Status::kOutOfMemory);
}

TEST_CASE("out of memory: over TCP messages for a channel that was left take no memory",
          "[unit][tcp]") {
  const Rank1 rank;
  rank.mailbox->enter(kEarly);
  rank.mailbox->leave(kEarly);
  refusal.begin_drought();
  char sent = 7, got = 0;
  rank.put(message_frame(kEarly, 0, 1, &sent, 1, 0), &sent);
  rank.put(message_frame(kAwaited, 0, 1, &sent, 1, 0), &sent);
  CHECK(transport_test::text_of(transport_test::on_ranks(1, [&](int) {
          AllocationFailure::mark(false);
          rank.mailbox->receive(kAwaited, 0, &got, 1, Deadline::in_ms(20'000));
        })) == "");
  CHECK(got == sent);
  const auto left = rank.mailbox->published_error(kEarly);
  CHECK((left && left->status() == Status::kInvalidState));
}
#endif
