#include "cuda/nccl/nccl_caller_comm.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_setup.hpp"

// Communicators over the fake NCCL that come from one of the caller's: split off it, or borrowed,
// which have one lock, one error and one end.

using Catch::Contains;
using namespace muonrt;
using namespace cuda_test;

namespace {

/// Two ranks whose communicator borrows one of the caller's that blocks; it is lost at the end.
std::vector<std::optional<Error>> on_borrowed(const std::function<void(Comm&, Machine&)>& work) {
  return on_theirs(2, {true, true}, [&](Comm& comm, Machine& machine, CallerNcclComm& theirs) {
    theirs.lost = true;
    work(comm, machine);
  });
}

/// Requires that the sum of 3 over two ranks arrives.
void check_sum(Comm& comm, Machine& machine) {
  auto* const value = machine.put(std::vector<int64_t>{3});
  comm.reduce_sum(machine.on(), value, value, 1);
  if (machine.get_one(value) != 6) require_none("sum");
}

}  // namespace

TEST_CASE("nccl theirs: a caller's communicator is split, or borrowed and left alive", "[nccl]") {
  for (const Origin origin :
       {Origin{false, false}, Origin{true, false}, Origin{false, true}, Origin{true, true}}) {
    const auto errors = on_theirs(2, origin, [](Comm& comm, Machine& machine, CallerNcclComm&) {
      const auto twin = comm.duplicate();
      exchange_with_all(*twin, machine);
      check_sum(*twin, machine);
      meet(*twin);
    });
    CHECK(text_of(errors) == "");
    const auto counts = fake_nccl::counts();
    CHECK(counts.made == (origin.borrow ? 2 : 6));
    CHECK(counts.destroyed == counts.made);
    check_rules();
  }
}

TEST_CASE("nccl theirs: before 2.26 no job stays with the calling thread", "[nccl]") {
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
      theirs.use(machine);  // finds the thread as it was
      check_sum(*comm, machine);
      theirs.use(machine);
      meet(*comm);
    });
    CHECK(text_of(errors) == "");
    check_rules();
  }
}

TEST_CASE("nccl theirs: blocks are launched in pairs, as the products' grids leave SMs free",
          "[nccl]") {
  const auto errors = on_theirs(1, {true, false}, [](Comm&, Machine&, CallerNcclComm&) {
    const cuda::NcclConfig config = fake_nccl::config(0);
    if (config.cga_cluster_size != 2 || config.max_ctas != 8 || config.blocking != 0)
      require_none("config");
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("nccl theirs: a split that is given up finds memory when it ends at last", "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  std::atomic<bool> late = false;
  const auto errors = on_ranks(2, [&](int rank) {
    CallerNcclComm theirs(id, 2, rank, false);
    theirs.lost = true;
    NcclOptions options;
    options.from = theirs.handle();
    if (rank == 1) {  // comes to the meeting, and not to the split
      const auto bootstrap = make_bootstrap(timed(group, rank, kLong));
      cuda::agree_on_nccl_setup(*bootstrap, [] {
        cuda::NcclSetup guest;
        guest.nccl_version = 22809;
        guest.max_ctas = NcclOptions().max_ctas;
        guest.origin = cuda::NcclOrigin::kSplit;
        return guest;
      });
      cuda::nccl_run_collectively(*bootstrap, [] {});
      const auto alarm = bootstrap->duplicate(), vote_sum = bootstrap->duplicate();
      while (!late) std::this_thread::yield();
      return;
    }
    try {
      over_fake(timed(group, rank, 600), options);
    } catch (const Error& e) {
      late = true;
      // Blocks as they were just given back are handed out again: none may be the split's.
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
  CHECK(says(errors[0], Status::kTimeout, "of rank 0"));
  CHECK_FALSE(errors[1]);
}

TEST_CASE("nccl theirs: a borrowed communicator is aborted once, whoever ends first", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    const auto first = comm.duplicate(), second = comm.duplicate();
    meet(comm);
    first->abort(Status::kTimeout, "the first step was late");
    second->abort(Status::kAborted, "enough");
    comm.abort(Status::kAborted, "enough");
    for (Comm* const ended : {first.get(), second.get(), &comm}) {
      if (!says(ended->error(), Status::kTimeout, "the first step was late"))
        require_none("another error");
      try {
        exchange_with_all(*ended, machine);
        require_none("it went on");
      } catch (const Error& e) {
        if (e.status() != Status::kTimeout) throw;
      }
    }
  });
  CHECK(text_of(errors) == "");
  CHECK(fake_nccl::counts().aborted == 2);
  check_rules();
}

TEST_CASE(
    "nccl theirs: communicators that borrow one each for themselves end together, and only they",
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
    meet(*apart);
    first->abort(Status::kTimeout, "a step was late");
    second->abort(Status::kAborted, "enough");
    if (!says(second->error(), Status::kTimeout, "a step was late")) require_none("another error");
    exchange_with_all(*apart, machine);
    machine.finish();
    meet(*apart);
  });
  CHECK(text_of(errors) == "");
  CHECK(fake_nccl::counts().aborted == 2);
  CHECK(fake_nccl::counts().destroyed == 2);
  check_rules();
}

TEST_CASE("nccl theirs: a handle with the value of one that was aborted is another one", "[nccl]") {
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
                    Contains("enough"));  // still there
  CHECK_THROWS_WITH(first->enter(10), Contains("enough"));
  first->abort(fake_nccl::api());
  const auto second = SharedNcclComm::for_borrowed_handle(handle, 0);
  CHECK(second != first);
  CHECK_FALSE(second->error());
  CHECK(SharedNcclComm::for_borrowed_handle(handle, 0) == second);
  const auto lock = second->enter(10);
  std::thread([&] { CHECK_THROWS_WITH(second->enter(10), Contains("outstanding")); }).join();
}

TEST_CASE("nccl theirs: what has lost its borrowed communicator makes no duplicate", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine&) {
    const auto twin = comm.duplicate();
    meet(comm);
    twin->abort(Status::kTimeout, "a step was late");
    comm.duplicate();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "a step was late"));
  check_rules();
}

TEST_CASE("nccl theirs: a sibling's abort delivers nothing to the other's reduction", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    const auto twin = comm.duplicate();
    auto* const value = machine.put(std::vector<int64_t>{5});
    meet(comm);
    if (comm.rank() == 0) {
      comm.reduce_sum(machine.on(), value, value, 1);  // rank 1 never comes
      twin->abort(Status::kAborted, "enough");
      machine.finish();
      if (machine.get_one(value) != 5) require_none("an aborted sum was delivered");
    }
    twin->abort(Status::kAborted, "enough");
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("nccl theirs: a peer that does not come to the first group of one that blocks ends it",
          "[nccl]") {
  std::atomic<bool> ended = false;
  const auto errors = on_borrowed([&](Comm& comm, Machine& machine) {
    comm.set_timeout_ms(300);
    while (comm.rank() == 1 && !ended) std::this_thread::yield();
    if (comm.rank() == 1) meet(comm);  // throws what rank 0 has told
    try {
      exchange_with_all(comm, machine);
    } catch (const Error&) {
      ended = true;
      throw;
    }
  });
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "exchange of rank 0 (nccl)"));
  check_rules();
}

TEST_CASE("nccl theirs: an abort ends a call that is stuck inside one that blocks", "[nccl]") {
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
