#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_theirs.hpp"

// Communicators over one of the caller's, which they borrow: one lock, one error, one end.

using Catch::Contains;
using namespace muonrt;
using namespace cuda_test;

namespace {

/// Two ranks whose communicator borrows one of the caller's that blocks; it is lost at the end.
std::vector<std::optional<Error>> on_borrowed(const std::function<void(Comm&, Machine&)>& work) {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  return on_ranks(2, [&](int rank) {
    Theirs theirs(id, 2, rank, true);
    theirs.lost = true;
    NcclOptions options;
    options.from = theirs.handle();
    options.borrow = true;
    const auto comm = over_fake(timed(group, rank, kLong), options);
    Machine machine(world_device());
    work(*comm, machine);
  });
}

}  // namespace

TEST_CASE("nccl borrowed: a borrowed communicator is aborted once, whoever ends first", "[nccl]") {
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
    "nccl borrowed: communicators that borrow one each for themselves end together, and only they",
    "[nccl]") {
  fake_nccl::reset();
  const auto id = new_id(), other_id = new_id();
  std::vector<std::unique_ptr<ThreadGroup>> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(std::make_unique<ThreadGroup>(2));
  const auto errors = on_ranks(2, [&](int rank) {
    Theirs theirs(id, 2, rank, true), others(other_id, 2, rank, true);
    theirs.lost = true;
    NcclOptions options;
    options.borrow = true;
    const auto make = [&](int group, const Theirs& from) {
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

TEST_CASE("nccl borrowed: a handle with the value of one that was aborted is another one",
          "[nccl]") {
  using cuda::NcclShared;
  fake_nccl::reset();
  Theirs theirs(new_id(), 1, 0, true);
  theirs.lost = true;
  const NcclHandle handle = theirs.handle();
  const auto first = NcclShared::of_borrowed(handle, 0);
  CHECK(NcclShared::of_borrowed(handle, 0) == first);
  CHECK(NcclShared::of_borrowed(handle, 1) != first);
  first->fail(Error(Status::kAborted, "enough"));
  CHECK_THROWS_WITH(NcclShared::of_borrowed(handle, 0), Contains("enough"));  // still there
  CHECK_THROWS_WITH(first->enter(10), Contains("enough"));
  first->abort(fake_nccl::api());
  const auto second = NcclShared::of_borrowed(handle, 0);
  CHECK(second != first);
  CHECK_FALSE(second->error());
  CHECK(NcclShared::of_borrowed(handle, 0) == second);
  const auto lock = second->enter(10);
  std::thread([&] { CHECK_THROWS_WITH(second->enter(10), Contains("outstanding")); }).join();
}

TEST_CASE("nccl borrowed: what has lost its borrowed communicator makes no duplicate", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine&) {
    const auto twin = comm.duplicate();
    meet(comm);
    twin->abort(Status::kTimeout, "a step was late");
    comm.duplicate();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "a step was late"));
  check_rules();
}

TEST_CASE("nccl borrowed: a sibling's abort delivers nothing to the other's reduction", "[nccl]") {
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

TEST_CASE("nccl borrowed: a peer that does not come to the first group of one that blocks ends it",
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

TEST_CASE("nccl borrowed: an abort ends a call that is stuck inside one that blocks", "[nccl]") {
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
