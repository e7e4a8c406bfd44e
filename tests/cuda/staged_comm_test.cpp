#include <catch2/catch.hpp>
#include <limits>

#include "backend/cuda_comm.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/worlds.hpp"
#include "support/bits_cases.hpp"

using namespace muonrt;
using namespace cuda_test;
using transport_test::on_ranks;
using transport_test::require_none;
using transport_test::text_of;

namespace {

std::unique_ptr<Comm> staged(std::unique_ptr<Transport> transport) {
  return make_staged_comm(make_bootstrap(std::move(transport)), 0);
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

TEST_CASE("staged: messages between GPUs' memories arrive, of all sizes, to oneself too",
          "[cuda]") {
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto comm = staged(group.transport(rank));
    comm->set_timeout_ms(60000);
    Machine machine(world_device());
    if (!comm->serves(*machine.device) || comm->serves(*make_host()))
      require_none("it serves another device than its own");
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

TEST_CASE("staged: steps of 1 to 5 ranks give the bits of one", "[cuda]") {
  const auto steps = 2;
  const world::Tensors alone = run_world(bits::make(factors(0, 0), false, steps), staged);
  // 2, 4 as 2 x 2 with shuffled ranks, and 5 of which one holds nothing
  const bits::Factors cases[] = {factors(1, 0), factors(6, 1, true), factors(8, 2)};
  for (const bits::Factors& f : cases) {
    const world::Case c = bits::make(f, false, steps);
    INFO(c.describe());
    CHECK(equal(run_world(c, staged), alone));
  }
}

TEST_CASE("staged: every mesh and scheme up to 8 ranks gives the bits of one", "[.gpu-only]") {
  const auto steps = 3;
  for (const bool half : {false, true}) {
    const world::Tensors alone = run_world(bits::make(factors(0, 0), half, steps), staged);
    for (size_t mesh = 1; mesh < bits::meshes().size(); ++mesh) {
      if (bits::meshes()[mesh].world > 8) continue;
      for (int scheme = 0; scheme < bits::kSchemes; ++scheme) {
        const world::Case c = bits::make(factors(mesh, scheme), half, steps);
        INFO(c.describe());
        CHECK(equal(run_world(c, staged), alone));
      }
    }
  }
}

TEST_CASE("staged: a peer that is lost ends the step on the others, and nothing is committed",
          "[cuda]") {
  const world::Case c = bits::make(factors(3, 0), false, 1);
  ThreadGroup group(3);
  std::vector<Bytes> before(3), after(3);
  const auto errors = on_ranks(3, [&](int number) {
    const auto comm = staged(group.transport(number));
    comm->set_timeout_ms(60000);
    Machine machine(world_device());
    DeviceMirror mirror(machine);
    auto rank = std::make_unique<world::Rank>(c, *comm, world_device, &mirror);
    if (number == 2) return;  // it ends here
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
