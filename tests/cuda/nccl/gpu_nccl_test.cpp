#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>

#include "backend/cuda_comm.hpp"
#include "comm/self_transport.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/worlds.hpp"
#include "support/bits_cases.hpp"

// Tests the real NCCL, which needs a GPU. The emulated build omits these cases; nccl_comm_test uses
// a fake NCCL.

using namespace muonrt;
using namespace cuda_test;

namespace {

std::unique_ptr<Comm> real(std::unique_ptr<Transport> transport) {
  return make_nccl_comm(make_bootstrap(std::move(transport)), {});
}

world::Case with_mesh(size_t mesh, int scheme) {
  bits::Factors f;
  f.mesh = mesh;
  f.scheme = scheme;
  return bits::make(f, false, 2);
}

/// Creates a communicator between two processes. Each process reads its rank and the common port
/// from the environment.
std::unique_ptr<Comm> between_processes() {
  const char *const rank = std::getenv("MUONRT_TEST_RANK"), *const port =
                                                                std::getenv("MUONRT_TEST_PORT");
  REQUIRE(rank);
  REQUIRE(port);
  const Rendezvous rendezvous{.rank = std::atoi(rank),
                              .size = 2,
                              .address = std::string("127.0.0.1:") + port,
                              .secret = "one machine's test",
                              .interface = "lo"};
  return real(make_tcp_transport(rendezvous_at_address(rendezvous, Deadline::in_ms(60000))));
}

}  // namespace

TEST_CASE("nccl on a GPU: one rank creates, reduces and ends as if staged, and sends no byte",
          "[cuda]") {
  if (is_emulated()) return;
  const auto staged = [](std::unique_ptr<Transport> transport) {
    return make_staged_comm(make_bootstrap(std::move(transport)), 0);
  };
  CHECK(run_world(with_mesh(0, 0), real) == run_world(with_mesh(0, 0), staged));
}

// This case is hidden. Each rank is a process that is started manually, and both processes use one
// GPU (see README.md).
TEST_CASE("nccl on a GPU: if a process dies, the step of the other ends and changes nothing",
          "[.nccl-dies]") {
  const auto comm = between_processes();
  world::Case c = with_mesh(1, 0);
  c.settings.timeout_ms = 8000;
  Machine machine(world_device());
  DeviceMirror mirror(machine);
  world::Rank mine(c, *comm, world_device, &mirror);
  StepReport report;
  REQUIRE(mine.step(0, report) == Status::kOk);
  char all[2], here = 1;
  comm->allgather(&here, all, 1);  // waits until both ranks have completed the first step
  if (comm->rank() == 1) std::_Exit(0);
  const world::Tensors before = mine.tensors();
  std::optional<Error> error;
  try {
    mine.step(1, report);
  } catch (const Error& e) {
    error = e;
  }
  const world::Tensors after = mine.tensors();
  REQUIRE(error);
  INFO(error->message());
  CHECK((error->status() == Status::kComm || error->status() == Status::kTimeout ||
         error->status() == Status::kAborted));
  CHECK((before == after));
}
