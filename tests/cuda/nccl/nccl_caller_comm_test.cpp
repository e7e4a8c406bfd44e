#include "cuda/nccl/nccl_caller_comm.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_setup.hpp"

// Tests communicators that use the fake NCCL and split or borrow a communicator of the caller.
// Communicators that borrow the same communicator share its lock and its error, and end together.

using Catch::Contains;
using namespace muonrt;
using namespace cuda_test;

namespace {

/// Runs `function` on two ranks whose communicators borrow a blocking communicator of the caller.
/// The borrowed communicator is aborted at the end.
std::vector<std::optional<Error>> on_borrowed(
    const std::function<void(Comm&, Machine&)>& function) {
  return on_caller_comm(2, {true, true}, [&](Comm& comm, Machine& machine, CallerNcclComm& theirs) {
    theirs.lost = true;
    function(comm, machine);
  });
}

/// Requires that the sum over two ranks, which both contribute 3, is correct.
void check_sum(Comm& comm, Machine& machine) {
  auto* const value = machine.put(std::vector<int64_t>{3});
  comm.reduce_sum(machine.on(), value, value, 1);
  if (machine.get_one(value) != 6) require_none("sum");
}

}  // namespace

TEST_CASE("caller's nccl: a communicator is split, or borrowed and not destroyed", "[nccl]") {
  for (const Origin origin :
       {Origin{false, false}, Origin{true, false}, Origin{false, true}, Origin{true, true}}) {
    const auto errors =
        on_caller_comm(2, origin, [](Comm& comm, Machine& machine, CallerNcclComm&) {
          const auto twin = comm.duplicate();
          exchange_with_all(*twin, machine);
          check_sum(*twin, machine);
          barrier(*twin);
        });
    CHECK(text_of(errors) == "");
    const auto counts = fake_nccl::counts();
    CHECK(counts.made == (origin.borrow ? 2 : 6));
    CHECK(counts.destroyed == counts.made);
    check_rules();
  }
}

TEST_CASE("caller's nccl: before 2.26 no job remains in the calling thread", "[nccl]") {
  for (const bool split : {false, true}) {
    fake_nccl::reset();
    ThreadGroup group(2);
    const auto id = new_id();
    const auto errors = on_ranks(2, [&](int rank) {
      fake_nccl::set_version(22501);
      CallerNcclComm theirs(id, 2, rank, !split);
      Machine machine(world_device());
      NcclOptions options;
      options.from = split ? theirs.handle() : nullptr;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      exchange_with_all(*comm, machine);
      theirs.use(machine);  // finds no unfinished job in the thread
      check_sum(*comm, machine);
      theirs.use(machine);
      barrier(*comm);
    });
    CHECK(text_of(errors) == "");
    check_rules();
  }
}

TEST_CASE("caller's nccl: thread blocks are launched in pairs, as products leave SMs free",
          "[nccl]") {
  const auto errors = on_caller_comm(1, {true, false}, [](Comm&, Machine&, CallerNcclComm&) {
    const cuda::NcclConfig config = fake_nccl::config(0);
    if (config.cga_cluster_size != 2 || config.max_ctas != 8 || config.blocking != 0)
      require_none("config");
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("caller's nccl: a split that fails can still write its handle later", "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  std::atomic<bool> timed_out = false;
  const auto errors = on_ranks(2, [&](int rank) {
    CallerNcclComm theirs(id, 2, rank, false);
    theirs.lost = true;
    NcclOptions options;
    options.from = theirs.handle();
    if (rank == 1) {  // rank 1 takes part in the setup, but not in the split
      const auto bootstrap = make_bootstrap(timed(group, rank, kLong));
      cuda::agree_on_nccl_setup(*bootstrap, [] {
        cuda::NcclSetup setup;
        setup.nccl_version = 22809;
        setup.max_ctas = NcclOptions().max_ctas;
        setup.origin = cuda::NcclOrigin::kSplit;
        return setup;
      });
      cuda::nccl_run_collectively(*bootstrap, [] {});
      const auto alarm = bootstrap->duplicate(), common = bootstrap->duplicate();
      while (!timed_out) std::this_thread::yield();
      return;
    }
    try {
      over_fake(timed(group, rank, 600), options);
    } catch (const Error& e) {
      timed_out = true;
      // The allocator may return memory that was freed recently. None of these blocks may be the
      // block that the pending split will write to.
      std::vector<std::unique_ptr<char[]>> blocks;
      for (size_t size = 16; size <= 2048; size += 16) {
        for (int i = 0; i < 8; ++i) {
          blocks.push_back(std::make_unique<char[]>(size));
          const char* const begin = blocks.back().get();
          for (const void* out : fake_nccl::unwritten()) {
            if (out >= begin && out < begin + size) require_none("NCCL will write into a block");
          }
        }
      }
      if (fake_nccl::unwritten().size() != 1) require_none("no split is open");
      throw;
    }
  });
  INFO(text_of(errors));
  CHECK(says(errors[0], Status::kTimeout, "on rank 0"));
  CHECK_FALSE(errors[1]);
}

TEST_CASE("caller's nccl: a borrowed communicator is aborted once, whichever user ends first",
          "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    const auto first = comm.duplicate(), second = comm.duplicate();
    barrier(comm);
    first->abort(Status::kTimeout, "the first step timed out");
    second->abort(Status::kAborted, "enough");
    comm.abort(Status::kAborted, "enough");
    for (Comm* const ended : {first.get(), second.get(), &comm}) {
      if (!says(ended->error(), Status::kTimeout, "the first step timed out"))
        require_none("another error");
      try {
        exchange_with_all(*ended, machine);
        require_none("no error");
      } catch (const Error& e) {
        if (e.status() != Status::kTimeout) throw;
      }
    }
  });
  CHECK(text_of(errors) == "");
  CHECK(fake_nccl::counts().aborted == 2);
  check_rules();
}

TEST_CASE("caller's nccl: communicators that borrow the same handle end together, others do not",
          "[nccl]") {
  fake_nccl::reset();
  const auto id = new_id(), other_id = new_id();
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(std::make_unique<ThreadGroup>(2));
  const auto errors = on_ranks(2, [&](int rank) {
    CallerNcclComm theirs(id, 2, rank, true), others(other_id, 2, rank, true);
    theirs.lost = true;
    NcclOptions options;
    options.borrow = true;
    const auto make = [&](int group, const CallerNcclComm& from) {
      options.from = from.handle();
      return over_fake(timed(*groups[static_cast<size_t>(group)], rank, kLong), options);
    };
    const auto first = make(0, theirs), second = make(1, theirs), apart = make(2, others);
    Machine machine(world_device());
    exchange_with_all(*first, machine);
    exchange_with_all(*second, machine);
    machine.finish();
    barrier(*apart);
    first->abort(Status::kTimeout, "a step timed out");
    second->abort(Status::kAborted, "enough");
    if (!says(second->error(), Status::kTimeout, "a step timed out")) require_none("another error");
    exchange_with_all(*apart, machine);
    machine.finish();
    barrier(*apart);
  });
  CHECK(text_of(errors) == "");
  CHECK(fake_nccl::counts().aborted == 2);
  CHECK(fake_nccl::counts().destroyed == 2);
  check_rules();
}

TEST_CASE("caller's nccl: a handle value that is reused after an abort gets a new object",
          "[nccl]") {
  using cuda::SharedNcclComm;
  fake_nccl::reset();
  CallerNcclComm theirs(new_id(), 1, 0, true);
  theirs.lost = true;
  const NcclHandle handle = theirs.handle();
  const auto first = SharedNcclComm::for_borrowed_handle(handle, 0);
  CHECK(SharedNcclComm::for_borrowed_handle(handle, 0) == first);
  CHECK(SharedNcclComm::for_borrowed_handle(handle, 1) != first);
  first->fail(Error(Status::kAborted, "enough"));
  CHECK_THROWS_WITH(SharedNcclComm::for_borrowed_handle(handle, 0),
                    Contains("enough"));  // the abort has not ended
  CHECK_THROWS_WITH(first->enter(10), Contains("enough"));
  first->abort(fake_nccl::api());
  const auto second = SharedNcclComm::for_borrowed_handle(handle, 0);
  CHECK(second != first);
  CHECK_FALSE(second->error());
  CHECK(SharedNcclComm::for_borrowed_handle(handle, 0) == second);
  const auto lock = second->enter(10);
  std::thread([&] { CHECK_THROWS_WITH(second->enter(10), Contains("outstanding")); }).join();
}

TEST_CASE("caller's nccl: no duplicate of a communicator whose handle was aborted", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine&) {
    const auto twin = comm.duplicate();
    barrier(comm);
    twin->abort(Status::kTimeout, "a step timed out");
    comm.duplicate();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "a step timed out"));
  check_rules();
}

TEST_CASE("caller's nccl: an abort over the same handle leaves a reduction's output unchanged",
          "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    const auto twin = comm.duplicate();
    auto* const value = machine.put(std::vector<int64_t>{5});
    barrier(comm);
    if (comm.rank() == 0) {
      comm.reduce_sum(machine.on(), value, value, 1);  // rank 1 does not take part
      twin->abort(Status::kAborted, "enough");
      machine.finish();
      if (machine.get_one(value) != 5) require_none("an aborted sum was copied");
    }
    twin->abort(Status::kAborted, "enough");
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("caller's nccl: a peer that is missing in the first group of a blocking handle ends it",
          "[nccl]") {
  std::atomic<bool> ended = false;
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    comm.set_timeout_ms(300);
    while (comm.rank() == 1 && !ended) std::this_thread::yield();
    if (comm.rank() == 1) barrier(comm);  // throws the error that rank 0 has published
    try {
      exchange_with_all(comm, machine);
    } catch (const Error&) {
      ended = true;
      throw;
    }
  });
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "exchange on rank 0 (nccl)"));
  check_rules();
}

TEST_CASE("caller's nccl: an abort ends a call that is blocked inside a blocking handle",
          "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm.abort(Status::kAborted, "enough");
    }
    exchange_with_all(comm, machine);
  });
  for (const auto& e : errors) CHECK(says(e, Status::kAborted, "enough"));
  check_rules();
}
