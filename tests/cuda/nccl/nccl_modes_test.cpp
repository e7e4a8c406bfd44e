#include <atomic>
#include <catch2/catch.hpp>
#include <memory>

#include "control.hpp"
#include "cuda/nccl/nccl_meeting.hpp"
#include "cuda/nccl/nccl_theirs.hpp"

// What NCCL's versions, and communicators of the caller's, ask of one over the fake NCCL.

using namespace muonrt;
using namespace cuda_test;

TEST_CASE("nccl modes: a caller's communicator is split, or borrowed and left alive", "[nccl]") {
  for (const auto& [borrow, blocking] :
       {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    fake_nccl::reset();
    ThreadGroup group(2);
    const auto id = new_id();
    const auto errors = on_ranks(2, [&](int rank) {
      Theirs theirs(id, 2, rank, blocking);
      NcclOptions options;
      options.from = theirs.handle();
      options.borrow = borrow;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      const auto twin = comm->duplicate();
      Machine machine(world_device());
      auto* const value = machine.put(std::vector<int64_t>{3});
      twin->reduce_sum(machine.on(), value, value, 1);
      exchange_with_all(*twin, machine);
      if (machine.get_one(value) != 6) require_none("sum");
      meet(*twin);
    });
    CHECK(text_of(errors) == "");
    const auto counts = fake_nccl::counts();
    CHECK(counts.made == (borrow ? 2 : 6));
    CHECK(counts.destroyed == counts.made);
    check_rules();
  }
}

TEST_CASE("nccl modes: before 2.26 no job stays with the calling thread", "[nccl]") {
  for (const bool split : {false, true}) {
    fake_nccl::reset();
    ThreadGroup group(2);
    const auto id = new_id();
    const auto errors = on_ranks(2, [&](int rank) {
      fake_nccl::set_version(22501);
      Theirs theirs(id, 2, rank, !split);
      Machine machine(world_device());
      NcclOptions options;
      options.from = split ? theirs.handle() : nullptr;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      exchange_with_all(*comm, machine);
      theirs.use(machine);  // finds the thread as it was
      auto* const value = machine.put(std::vector<int64_t>{3});
      comm->reduce_sum(machine.on(), value, value, 1);
      theirs.use(machine);
      if (machine.get_one(value) != 6) require_none("sum");
      meet(*comm);
    });
    CHECK(text_of(errors) == "");
    check_rules();
  }
}

TEST_CASE("nccl modes: a split that is given up finds memory when it ends at last", "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  std::atomic<bool> late = false;
  const auto errors = on_ranks(2, [&](int rank) {
    Theirs theirs(id, 2, rank, false);
    theirs.lost = true;
    NcclOptions options;
    options.from = theirs.handle();
    if (rank == 1) {  // comes to the meeting, and not to the split
      const auto bootstrap = make_bootstrap(timed(group, rank, kLong));
      cuda::nccl_meet(*bootstrap, [] {
        cuda::NcclGuest guest;
        guest.nccl_version = 22809;
        guest.max_ctas = NcclOptions().max_ctas;
        guest.origin = cuda::NcclOrigin::kSplit;
        return guest;
      });
      cuda::nccl_together(*bootstrap, [] {});
      const auto alarm = bootstrap->duplicate(), verdict = bootstrap->duplicate();
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

TEST_CASE("nccl modes: blocks are launched in pairs, as the products' grids leave SMs free",
          "[nccl]") {
  for (const bool split : {false, true}) {
    fake_nccl::reset();
    ThreadGroup group(1);
    const auto id = new_id();
    const auto errors = on_ranks(1, [&](int rank) {
      Theirs theirs(id, 1, rank, true);
      NcclOptions options;
      options.from = split ? theirs.handle() : nullptr;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      const cuda::NcclConfig config = fake_nccl::config(rank);
      if (config.cga_cluster_size != 2 || config.max_ctas != 8 || config.blocking != 0)
        require_none("config");
    });
    CHECK(text_of(errors) == "");
    check_rules();
  }
}

TEST_CASE("nccl modes: messages under way are bounded, and a late rank still ends them all",
          "[nccl]") {
  const auto errors = on_nccl(3, kLong, [&](Comm& comm, Machine& machine) {
    // The others run ahead as far as they are let.
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    exchange_with_all(comm, machine, 150);
    machine.finish();
    meet(comm);
  });
  CHECK(text_of(errors) == "");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(fake_nccl::most_under_way(rank) > 100);
    CHECK(fake_nccl::most_under_way(rank) <= 256);
  }
  check_rules();
}

TEST_CASE("nccl modes: a rank that waits for messages to end is told when a peer is lost",
          "[nccl]") {
  std::atomic<bool> ended = false;
  const auto errors = on_nccl(2, 600, [&](Comm& comm, Machine& machine) {
    while (comm.rank() == 1 && !ended) std::this_thread::yield();
    if (comm.rank() == 1) meet(comm);
    try {
      exchange_with_all(comm, machine, 300);
    } catch (const Error&) {
      ended = true;
      throw;
    }
  });
  INFO(text_of(errors));
  CHECK(says(errors[0], Status::kTimeout, "exchange #0 of rank 0"));
  check_rules();
}

TEST_CASE("nccl modes: a GPU that is lost ends what is watched, and who waits for room, at once",
          "[nccl]") {
  constexpr int kFit = 4;  // operations of 64 messages each
  for (const int operations : {kFit - 1, kFit + 1}) {
    INFO(operations << " operations");
    fake_nccl::reset();
    ThreadGroup group(1);
    const auto errors = on_ranks(1, [&](int rank) {
      NcclOptions options;
      options.max_ctas = 64;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      Machine machine(world_device());
      auto* const value = machine.put(std::vector<int64_t>{3});
      emulator::hold(true);
      emulator::fail_next_kernel();
      std::thread losing([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        emulator::hold(false);
      });
      std::optional<Error> error;
      try {
        for (int i = 0; i < operations; ++i) comm->reduce_sum(machine.on(), value, value, 1);
        while (!comm->error()) std::this_thread::yield();
        error = comm->error();
      } catch (const Error& e) {
        error = e;
      }
      losing.join();
      emulator::forget_failure();
      throw *error;
    });
    INFO(text_of(errors));
    CHECK(says(errors[0], Status::kDevice, "work on CUDA device 0 failed: cudaErrorLaunchFailure"));
  }
}
