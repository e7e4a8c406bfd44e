// Tests two steps under mpirun in which each allocation of muonrt fails in turn. Allocations of MPI
// do not fail.
#include <catch2/catch.hpp>

#include "comm/host_comm.hpp"
#include "mpi/harness.hpp"
#include "support/bits_cases.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/faults/failing_new.hpp"
#include "support/sanitized.hpp"

using namespace muonrt;
using namespace mpi_test;
using support::AllocationFailure;
using support::refusal;

namespace {

world::Case small_case(int ranks) {
  world::Case c = world::on_mesh({ranks});
  c.params = {world::matrix("w", {6, 5}, {{PlacementKind::kShard, 0, 1}}),
              world::matrix("same", {4, 6}, {})};
  c.steps = 2;
  c.inactive_params = {{1}, {0}};
  c.settings.clip_norm = 0.5;
  c.settings.portable_gemm = true;
  return c;
}

/// Runs two steps, each of which is repeated until it is committed. Returns the problem, or "".
std::string run(const world::Case& c, const world::Tensors& expected, int faulty, int64_t nth) {
  HostComm comm(connect());
  world::Rank rank(c, comm);
  StepReport report;
  std::string seen;
  for (int step = 0; step < c.steps; ++step) {
    for (int tries = 0; rank.optimizer().steps() == step && tries < 3; ++tries) {
      rank.fill_gradients(step);
      barrier();
      if (step == 0 && tries == 0 && comm.rank() == faulty) refusal.arm(nth);
      AllocationFailure::mark(comm.rank() == faulty);
      Status status = Status::kOk;
      try {
        status = rank.step_only(step, report);
      } catch (const Error& error) {
        status = error.status();
      }
      AllocationFailure::mark(false);
      seen += cat(status_name(status), " ");
    }
  }
  if (seen != "MUONRT_OK MUONRT_OK " && seen != "MUONRT_ERROR_OUT_OF_MEMORY MUONRT_OK MUONRT_OK " &&
      seen != "MUONRT_OK MUONRT_ERROR_OUT_OF_MEMORY MUONRT_OK ")
    return seen;
  return rank.tensors(expected) == expected ? "" : "the bits differ; " + seen;
}

}  // namespace

TEST_CASE("out of memory: under mpirun a step is rejected or committed, whichever allocation fails",
          "[mpi]") {
  const world::Case on_one_rank = small_case(1), c = small_case(size());
  const world::Tensors expected = world::run(on_one_rank).tensors;
  for (int faulty = 0; faulty < size(); ++faulty) {
    int64_t nth = 0;
    for (bool fired = true; fired; ++nth) {
      refusal.disarm();
      std::string problem;
      const std::string thrown = attempt([&] { problem = run(c, expected, faulty, nth); });
      const bool mine = refusal.fired() && rank() == faulty;
      refusal.disarm();
      CAPTURE(faulty, nth);
      REQUIRE(on_all(problem + thrown) == "");
      fired = on_all(mine ? "fired" : "") != "";
    }
    CHECK((nth > 1 || kSanitized));
  }
}
