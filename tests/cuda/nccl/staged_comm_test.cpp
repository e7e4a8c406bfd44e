#include <catch2/catch.hpp>
#include <limits>

#include "backend/cuda_comm.hpp"
#include "cuda/nccl/pinned_bootstrap.hpp"
#include "cuda/nccl/worlds.hpp"
#include "support/bits_cases.hpp"

using namespace muonrt;
using namespace cuda_test;
using transport_test::on_ranks;
using transport_test::require_none;
using transport_test::text_of;

namespace {

/// Returns a function that creates a staged communicator between threads. Messages are copied
/// through host memory if `pinned` is true, and otherwise directly.
MakeComm make_comm(bool pinned) {
  return [pinned](std::unique_ptr<Transport> transport) {
    auto bootstrap = make_bootstrap(std::move(transport));
    if (pinned) bootstrap = std::make_unique<PinnedBootstrap>(std::move(bootstrap));
    return make_staged_comm(std::move(bootstrap), 0);
  };
}
bool draw_pinned() {
  const bool pinned = GENERATE(false, true);
  UNSCOPED_INFO((pinned ? "through pinned memory" : "from GPU memory to GPU memory"));
  return pinned;
}

bool equal(const world::Tensors& a, const world::Tensors& b) { return a == b; }

bits::Factors factors(size_t mesh, int scheme, bool eager = false) {
  bits::Factors out;
  out.mesh = mesh;
  out.scheme = scheme;
  out.commit = eager;
  return out;
}

}  // namespace

TEST_CASE(
    "staged: messages of all sizes between GPU memories arrive, also those to the rank itself",
    "[cuda]") {
  const bool pinned = draw_pinned();
  const MakeComm staged = make_comm(pinned);
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto comm = staged(group.transport(rank));
    comm->set_timeout_ms(60000);
    if (comm->describe() !=
        (pinned ? "staged over thread, 3 ranks" : "direct over thread, 3 ranks"))
      require_none(comm->describe());
    Machine machine(world_device());
    if (!comm->serves(*machine.device) || comm->serves(*make_host()))
      require_none("it accepts another device");
    const unsigned char* const nothing = machine.put(Bytes(300000));
    for (const int64_t n : {int64_t{1}, int64_t{1000}, int64_t{70000}}) {
      const auto mine = [&](int from, int to) {
        return values(static_cast<uint64_t>(from * 10 + to), DType::kF32, n + from + to);
      };
      std::vector<SendTo> sends;
      std::vector<ReceiveFrom> receives;
      for (int32_t peer = 0; peer < 3; ++peer) {
        const Bytes out = mine(rank, peer);
        sends.push_back({peer, machine.put(out), std::ssize(out)});
        const Bytes blank(mine(peer, rank).size());
        receives.push_back({peer, machine.put(blank), std::ssize(blank)});
      }
      comm->exchange(machine.on(), sends, receives);
      // Rank 0 may immediately reuse the memory from which it has sent, before the other ranks read
      // their messages.
      if (rank == 0) {
        for (const SendTo& m : sends)
          machine.ops().copy(machine.on(), const_cast<void*>(m.data), nothing, m.bytes);
        machine.finish();
      }
      char all[3];
      comm->allgather("", all, 1);
      machine.finish();
      for (int32_t peer = 0; peer < 3; ++peer) {
        const auto& r = receives[static_cast<size_t>(peer)];
        const Bytes got = machine.get(static_cast<const unsigned char*>(r.data), r.bytes);
        if (difference(got, mine(peer, rank)) != -1) require_none("bytes differ");
      }
    }
    const auto in = machine.put(std::vector<int64_t>{rank, 5, std::numeric_limits<int64_t>::max()});
    const auto sum = machine.put(std::vector<int64_t>(3));
    comm->reduce_sum(machine.on(), in, sum, 3);
    const auto most = machine.put(std::vector<float>{-1.0f * static_cast<float>(rank), 2.5f});
    comm->reduce_max(machine.on(), most, most, 2);
    machine.finish();
    const auto sums = machine.get(sum, 3);
    if (sums[0] != 3 || sums[1] != 15 || sums[2] != std::numeric_limits<int64_t>::max() - 2)
      require_none("sum");
    if (machine.get(most, 2) != std::vector<float>{0.0f, 2.5f}) require_none("maximum");
  });
  CHECK(text_of(errors) == "");
}

TEST_CASE("staged: steps of 1 to 5 ranks are bitwise identical to those of one", "[cuda]") {
  const MakeComm staged = make_comm(draw_pinned());
  const auto steps = 2;
  const world::Tensors alone = run_world(bits::make(factors(0, 0), false, steps), staged);
  // The cases have 2 ranks, 4 ranks as a mesh of 2 x 2 in shuffled order, and 5 ranks of which one
  // holds no element.
  const bits::Factors cases[] = {factors(1, 0), factors(6, 1, true), factors(8, 2)};
  for (const bits::Factors& f : cases) {
    world::Case c = bits::make(f, false, steps);
    c.async = f.commit == 0;
    INFO(c.describe());
    CHECK(equal(run_world(c, staged), alone));
  }
}

TEST_CASE("staged: if a peer is lost, the step of the others ends and nothing is committed",
          "[cuda]") {
  const MakeComm staged = make_comm(draw_pinned());
  const world::Case c = bits::make(factors(3, 0), false, 1);
  ThreadGroup group(3);
  std::vector<Bytes> before(3), after(3);
  const auto errors = on_ranks(3, [&](int number) {
    const auto comm = staged(group.transport(number));
    comm->set_timeout_ms(60000);
    Machine machine(world_device());
    DeviceMirror mirror(machine);
    auto rank = std::make_unique<world::Rank>(c, *comm, world_device, &mirror);
    if (number == 2) return;  // this rank ends here
    before[static_cast<size_t>(number)] = rank->state(3, StateKind::kMomentum);
    StepReport report;
    std::optional<Error> error;
    try {
      rank->step(0, report);
    } catch (const Error& e) {
      error = e;
    }
    after[static_cast<size_t>(number)] = rank->state(3, StateKind::kMomentum);
    if (error) throw *error;
  });
  for (const size_t r : {size_t{0}, size_t{1}}) {
    CHECK((errors[r] && errors[r]->status() == Status::kComm));
    CHECK(before[r] == after[r]);
  }
}

TEST_CASE("staged: a message of a rank to itself must have the expected size", "[cuda]") {
  const MakeComm staged = make_comm(draw_pinned());
  ThreadGroup group(1);
  const auto comm = staged(group.transport(0));
  Machine machine(world_device());
  const SendTo send{0, machine.put(std::vector<float>(4, 1.0f)), 16};
  float* const in = machine.put(std::vector<float>(4, 2.0f));
  const ReceiveFrom same{0, in, 16}, fewer{0, in, 12};
  comm->exchange(machine.on(), {&send, 1}, {&same, 1});
  machine.finish();
  CHECK(machine.get(in, 4) == std::vector<float>(4, 1.0f));
  machine.ops().copy(machine.on(), in, machine.put(std::vector<float>(4, 2.0f)), 16);
  const auto says = [](const char* text) {
    return Catch::Predicate<Error>([=](const Error& e) {
      return e.status() == Status::kMismatch && e.message().find(text) != std::string::npos;
    });
  };
  CHECK_THROWS_MATCHES(comm->exchange(machine.on(), {&send, 1}, {&fewer, 1}), Error,
                       says("sends 16 bytes to itself and expects 12"));
  machine.finish();
  CHECK(machine.get(in, 4) == std::vector<float>(4, 2.0f));
}

TEST_CASE("staged: a rank may send itself only one message, which must not be empty", "[cuda]") {
  const MakeComm staged = make_comm(draw_pinned());
  const bool twice = GENERATE(false, true);
  ThreadGroup group(1);
  const auto comm = staged(group.transport(0));
  Machine machine(world_device());
  float* const out = machine.put(std::vector<float>(4, 1.0f));
  float* const in = machine.put(std::vector<float>(4, 2.0f));
  const SendTo sends[] = {{0, out, twice ? 16 : 0}, {0, out, 8}};
  const ReceiveFrom receives[] = {{0, in, twice ? 16 : 0}, {0, in, 8}};
  const size_t count = twice ? 2 : 1;
  CHECK_THROWS_AS(comm->exchange(machine.on(), {sends, count}, {receives, count}), Error);
  machine.finish();
  CHECK(machine.get(in, 4) == std::vector<float>(4, 2.0f));
}

TEST_CASE("staged making: all ranks report the rank whose GPU does not exist", "[cuda]") {
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    auto transport = group.transport(rank);
    transport->set_timeout_ms(60000);
    make_staged_comm(make_bootstrap(std::move(transport)), rank == 1 ? 99 : 0);
  });
  INFO(text_of(errors));
  for (const auto& e : errors) {
    REQUIRE(e);
    CHECK(e->status() == Status::kDevice);
    CHECK(e->message().find("rank 1: ") != std::string::npos);
  }
}
