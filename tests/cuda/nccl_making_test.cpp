#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <thread>

#include "control.hpp"
#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_meeting.hpp"
#include "cuda/nccl_theirs.hpp"
#include "cuda/none_left.hpp"

// A rank that fails while a communicator over the fake NCCL is made: all ranks are told by whom and
// why, and none waits for its own deadline, which lies behind the test's.

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr int64_t kNever = 100'000'000;

/// Three ranks make a communicator; `plant` comes before that, on each rank.
std::vector<std::optional<Error>> making(const std::function<void(int)>& plant) {
  fake_nccl::reset();
  ThreadGroup group(3);
  return on_ranks(3, [&](int rank) {
    auto transport = timed(group, rank, kNever);
    plant(rank);
    over_fake(std::move(transport));
  });
}

/// The same of one that is split off the caller's, or borrows it.
std::vector<std::optional<Error>> taking(bool blocking, bool borrow,
                                         const std::function<void(int)>& plant) {
  fake_nccl::reset();
  ThreadGroup group(3);
  const auto id = new_id();
  return on_ranks(3, [&](int rank) {
    Theirs theirs(id, 3, rank, blocking);
    NcclOptions options;
    options.from = theirs.handle();
    options.borrow = borrow;
    auto transport = timed(group, rank, kNever);
    plant(rank);
    try {
      over_fake(std::move(transport), options);
    } catch (const Error&) {
      theirs.lost = !borrow;  // its split may be under way
      throw;
    }
  });
}

/// What ranks are told by the last thing that the making asks NCCL, when all have come so far.
std::map<int, cuda::NcclResult> last_results;
std::atomic<int> come_so_far;
thread_local int making_rank;

cuda::NcclResult count_last(NcclHandle handle, int* size) {
  const auto result = fake_nccl::api().count(handle, size);
  ++come_so_far;
  const auto planted = last_results.find(making_rank);
  if (planted == last_results.end()) return result;
  const Deadline late = Deadline::in_ms(kLong);
  while (come_so_far < 4 && !late.passed()) std::this_thread::yield();
  return planted->second;
}
const cuda::NcclApi& failing_last() {
  static const cuda::NcclApi table = [] {
    cuda::NcclApi out = fake_nccl::api();
    out.count = count_last;
    return out;
  }();
  return table;
}

/// Four ranks do something `kRounds` times, with messages that take their time; all have the same
/// error each time.
constexpr int kRounds = 200;
void check_rounds(Status status, const std::string& message,
                  const std::function<void(int, std::unique_ptr<Transport>)>& work) {
  for (int round = 0; round < kRounds; ++round) {
    fake_nccl::reset();
    come_so_far = 0;
    ThreadFaults slow;
    slow.max_delay_us = 300;
    slow.seed = static_cast<uint64_t>(round);
    ThreadGroup group(4, slow);
    const auto errors = on_ranks(4, [&](int rank) { work(rank, timed(group, rank, kNever)); });
    CAPTURE(round, text_of(errors));
    bool same = true;
    for (const auto& e : errors)
      same = same && e && e->status() == status && e->message() == message;
    REQUIRE(same);
    check_rules();
  }
}

void check_all(const std::vector<std::optional<Error>>& errors, Status status,
               const std::string& words) {
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, status, words));
  check_rules();
}

}  // namespace

TEST_CASE("nccl making: a rank whose communicator is not made is named on all ranks", "[nccl]") {
  const auto errors = making([](int rank) {
    if (rank == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
  });
  check_all(errors, Status::kComm, "rank 1: NCCL failed in ncclCommInitRankConfig");
  CHECK(fake_nccl::counts().aborted == 2);
}

TEST_CASE("nccl making: what the others meet then is not taken for the cause", "[nccl]") {
  const auto errors = making([](int rank) {
    if (rank == 2) fake_nccl::refuse(2, cuda::kNcclUnhandledCudaError);
    if (rank == 0) fake_nccl::fail(0);  // its peer is gone, NCCL says
  });
  check_all(errors, Status::kDevice, "rank 2: NCCL failed in ncclCommInitRankConfig");
}

TEST_CASE("nccl making: ranks that have theirs tell what failed on another as that one does",
          "[nccl]") {
  const auto make = [](int rank, std::unique_ptr<Transport> transport) {
    making_rank = rank;
    cuda::make_nccl_comm(failing_last, make_bootstrap(std::move(transport)), NcclOptions());
  };
  const std::string text =
      "rank 2: NCCL failed in ncclCommInitRankConfig: an error of the fake; set NCCL_DEBUG=WARN "
      "for "
      "its own account";
  SECTION("one rank") {
    last_results = {{2, cuda::kNcclSystemError}};
    check_rounds(Status::kComm, text, make);
  }
  SECTION("two ranks, differently") {
    last_results = {{1, cuda::kNcclSystemError}, {2, cuda::kNcclUnhandledCudaError}};
    check_rounds(Status::kDevice, text, make);
  }
  CHECK(fake_nccl::counts().made == 4);
  CHECK(fake_nccl::counts().aborted == 4);
  CHECK(fake_nccl::counts().destroyed == 0);
}

TEST_CASE("nccl making: what is agreed on outlasts a program that ends the others with it",
          "[nccl]") {
  const auto fail = [](int rank, std::unique_ptr<Transport> transport) {
    const auto inner = make_bootstrap(transport->duplicate());
    try {
      cuda::nccl_enter(*inner, false, [&](const Bootstrap&) {
        if (rank == 0) throw Error(Status::kComm, "a peer is gone");
        if (rank == 2) throw Error(Status::kDevice, "the GPU is gone");
      });
    } catch (const Error& e) {
      transport->abort_family(e.status(), e.message());
      throw;
    }
  };
  check_rounds(Status::kDevice, "rank 2: the GPU is gone", fail);
}

TEST_CASE("nccl making: a rank that is lost leaves the others the name of the one that failed",
          "[nccl]") {
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto bootstrap = make_bootstrap(timed(group, rank, kNever));
    cuda::nccl_enter(*bootstrap, false, [&](const Bootstrap& alarm) {
      if (rank == 1) throw Error(Status::kDevice, "the GPU is gone");
      while (!alarm.trouble()) std::this_thread::yield();
      if (rank == 2) bootstrap->abort(Error(Status::kAborted, "stopped"));
    });
  });
  for (const auto& e : errors) {
    REQUIRE(e);
    CHECK(e->status() == Status::kDevice);
    CHECK(e->message() == "rank 1: the GPU is gone");
  }
}

TEST_CASE("nccl making: a duplicate that is not made on one rank leaves the others theirs",
          "[nccl]") {
  const auto errors = on_nccl(3, kNever, [&](Comm& comm, Machine& machine) {
    meet(comm);
    if (comm.rank() == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
    std::optional<Error> refused;
    try {
      comm.duplicate();
    } catch (const Error& e) {
      refused = e;
    }
    meet(comm);
    exchange_with_all(comm, machine);
    machine.finish();
    meet(comm);
    if (refused) throw *refused;
  });
  check_all(errors, Status::kComm, "rank 1: NCCL failed in ncclCommInitRankConfig");
}

TEST_CASE("nccl making: memory that one rank lacks is told before any rank enters NCCL", "[nccl]") {
  for (const int allocation : {1, 2}) {  // pinned; of the GPU
    CAPTURE(allocation);
    const auto plant = [&](int rank) {
      if (rank == 2) emulator::fail_allocation(allocation);
    };
    {
      const NoneLeft none;
      check_all(making(plant), Status::kOutOfMemory,
                allocation == 1 ? "rank 2: cudaHostAlloc" : "rank 2: cudaMalloc");
      CHECK(fake_nccl::counts().made == 0);
    }
    for (const auto& [blocking, borrow] :
         {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      const NoneLeft none;
      const auto errors = taking(blocking, borrow, plant);
      check_all(errors, Status::kOutOfMemory, "rank 2: cuda");
      CHECK(fake_nccl::counts().made == 3);
      CHECK(fake_nccl::counts().aborted == 0);
    }
  }
}

TEST_CASE("nccl making: a split that fails on one rank is told on all, if its parent lets them go",
          "[nccl]") {
  const auto errors = taking(false, false, [](int rank) {
    if (rank == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
  });
  check_all(errors, Status::kComm, "rank 1: NCCL failed in ncclCommSplit");
}

TEST_CASE("nccl making: a rank whose split of a parent that blocks fails says why itself",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(3);
  const auto id = new_id();
  std::vector<NcclHandle> parents(3);
  const auto errors = on_ranks(3, [&](int rank) {
    Theirs theirs(id, 3, rank, true);
    theirs.lost = true;
    parents[static_cast<size_t>(rank)] = theirs.handle();
    NcclOptions options;
    options.from = theirs.handle();
    auto transport = timed(group, rank, 500);
    if (rank == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
    try {
      over_fake(std::move(transport), options);
    } catch (const Error&) {
      // The others are inside NCCL until their programs end it.
      if (rank == 1)
        for (const int peer : {0, 2}) fake_nccl::api().abort(parents[static_cast<size_t>(peer)]);
      throw;
    }
  });
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, Status::kComm, "NCCL failed in ncclCommSplit"));
}

TEST_CASE("nccl making: a caller's communicator with an error is refused before it is split",
          "[nccl]") {
  for (const bool borrow : {false, true}) {
    const auto errors = taking(true, borrow, [](int rank) {
      if (rank == 1) fake_nccl::fail(1);
    });
    check_all(errors, Status::kComm, "rank 1: NCCL failed in work on nccl_comm");
    CHECK(fake_nccl::counts().made == 3);
  }
}

TEST_CASE("nccl making: a borrowed communicator that is in use on one rank is told on all",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  const auto errors = on_ranks(2, [&](int rank) {
    Theirs theirs(id, 2, rank, true);
    NcclOptions options;
    options.from = theirs.handle();
    options.borrow = true;
    const auto shared = cuda::NcclShared::of_borrowed(theirs.handle(), 0);
    std::promise<void> held, done;
    std::thread user([&] {
      std::unique_lock<std::timed_mutex> lock;
      if (rank == 1) lock = shared->enter(kLong);
      held.set_value();
      done.get_future().wait();
    });
    held.get_future().wait();
    std::optional<Error> error;
    try {
      over_fake(timed(group, rank, 3000), options);
    } catch (const Error& e) {
      error = e;
    }
    done.set_value();
    user.join();
    if (error) throw *error;
  });
  check_all(errors, Status::kTimeout, "rank 1: nccl_comm is inside a call");
}
