#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "control.hpp"
#include "cuda/device/exhausted_memory_cache.hpp"
#include "cuda/nccl/nccl_caller_comm.hpp"
#include "cuda/nccl/nccl_link.hpp"
#include "cuda/nccl/nccl_setup.hpp"

// Tests a rank that fails while a communicator with the fake NCCL is being created. All ranks must
// report which rank failed and why. No rank may wait until its own timeout expires, because this
// timeout is longer than the timeout of the test.

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr int64_t kNever = 100'000'000;

enum class From {
  kNothing,
  kSplit,
  kBorrowed
};  // how the communicator uses a communicator of the caller

/// Creates a communicator on three ranks, after calling `plant` on each rank.
std::vector<std::optional<Error>> making(From from, bool blocking,
                                         const std::function<void(int, NcclOptions&)>& plant) {
  fake_nccl::reset();
  ThreadGroup group(3);
  const auto id = new_id();
  return on_ranks(3, [&](int rank) {
    std::optional<CallerNcclComm> theirs;
    NcclOptions options;
    if (from != From::kNothing) {
      theirs.emplace(id, 3, rank, blocking);
      options.from = theirs->handle();
      options.borrow = from == From::kBorrowed;
    }
    auto transport = timed(group, rank, kNever);
    plant(rank, options);
    try {
      over_fake(std::move(transport), options);
    } catch (const Error&) {
      if (theirs) theirs->lost = from == From::kSplit;  // its split may be in progress
      throw;
    }
  });
}

/// The results that the last NCCL call of the creation returns to the ranks, after all ranks have
/// reached it.
std::map<int, cuda::NcclResult> last_results;
std::atomic<int> arrived;
thread_local int making_rank;

cuda::NcclResult count_last(NcclHandle handle, int* size) {
  const auto result = fake_nccl::api().count(handle, size);
  ++arrived;
  const auto planted = last_results.find(making_rank);
  if (planted == last_results.end()) return result;
  const Deadline late = Deadline::in_ms(kLong);
  while (arrived < 4 && !late.passed()) std::this_thread::yield();
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

/// Runs a function on four ranks `kRounds` times, with delayed messages. Checks that all ranks
/// return the same error each time.
constexpr int kRounds = 200;
void check_rounds(Status status, const std::string& message,
                  const std::function<void(int, std::unique_ptr<Transport>)>& work) {
  for (int round = 0; round < kRounds; ++round) {
    fake_nccl::reset();
    arrived = 0;
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
               const std::string& text) {
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, status, text));
  check_rules();
}

}  // namespace

TEST_CASE("nccl making: what fails on one rank or differs between ranks is reported by all",
          "[nccl]") {
  using Options = NcclOptions;
  const auto refuse = [](int failing, cuda::NcclResult result) {
    return [=](int rank, Options&) {
      if (rank == failing) fake_nccl::refuse(rank, result);
    };
  };
  const auto fail = [](int rank, Options&) {
    if (rank == 1) fake_nccl::fail(1);
  };
  struct Row {
    From from;
    bool blocking;
    std::function<void(int, Options&)> plant;
    Status status;
    const char* text;
    int64_t made, aborted = 0;  // a value of -1 is not checked
  };
  const auto check_row = [](const Row& row) {
    INFO(row.text);
    check_all(making(row.from, row.blocking, row.plant), row.status, row.text);
    if (row.made >= 0) CHECK(fake_nccl::counts().made == row.made);
    if (row.aborted >= 0) CHECK(fake_nccl::counts().aborted == row.aborted);
  };
  for (const Row& row : std::vector<Row>{
           {From::kNothing, false, refuse(1, cuda::kNcclSystemError), Status::kComm,
            "rank 1: NCCL failed in ncclCommInitRankConfig", -1, 2},
           // An error that other ranks report only as a consequence must not be reported as the
           // cause.
           {From::kNothing, false,
            [](int rank, Options&) {
              if (rank == 2) fake_nccl::refuse(2, cuda::kNcclUnhandledCudaError);
              if (rank == 0) fake_nccl::fail(0);  // NCCL reports that another rank has ended
            },
            Status::kDevice, "rank 2: NCCL failed in ncclCommInitRankConfig", -1, -1},
           {From::kSplit, false, refuse(1, cuda::kNcclSystemError), Status::kComm,
            "rank 1: NCCL failed in ncclCommSplit", -1, -1},
           {From::kSplit, true, fail, Status::kComm, "rank 1: NCCL failed in work on nccl_comm", 3},
           {From::kBorrowed, true, fail, Status::kComm, "rank 1: NCCL failed in work on nccl_comm",
            3},
           {From::kNothing, false,
            [](int rank, Options&) { fake_nccl::set_version(rank == 1 ? 22703 : 22809); },
            Status::kMismatch, "2.27.3 on ranks [1]; 2.28.9 on ranks [0, 2]", 0},
           {From::kNothing, false,
            [](int rank, Options& o) { o.device_index = rank == 1 ? 99 : 0; }, Status::kDevice,
            "rank 1: ", 0},
           {From::kSplit, true, [](int rank, Options& o) { o.device_index = rank == 1; },
            Status::kInvalidArgument, "rank 1: nccl_comm has rank 1 of 3 on CUDA device 0", 3},
           {From::kSplit, false, [](int rank, Options& o) { o.max_ctas = rank == 0 ? 4 : 8; },
            Status::kMismatch, "max_ctas differs (4 on ranks [0]; 8 on ranks [1, 2])", 3},
           {From::kSplit, false,
            [](int rank, Options& o) {
              if (rank == 0) o.from = nullptr;
            },
            Status::kMismatch,
            "nccl_comm and borrow differ (none on ranks [0]; one to split on ranks [1, 2])", 3},
           {From::kSplit, false, [](int rank, Options& o) { o.borrow = rank == 1; },
            Status::kMismatch, "one to borrow on ranks [1]", 3}})
    check_row(row);
  // In the following cases, an allocation fails before any rank calls NCCL.
  for (const int allocation : {1, 2}) {  // 1: pinned memory, 2: GPU memory
    const auto plant = [&](int rank, Options&) {
      if (rank == 2) emulator::fail_allocation(allocation);
    };
    for (const auto& [from, blocking] : {std::pair{From::kNothing, false},
                                         {From::kSplit, false},
                                         {From::kSplit, true},
                                         {From::kBorrowed, false},
                                         {From::kBorrowed, true}}) {
      CAPTURE(allocation, static_cast<int>(from), blocking);
      const ExhaustedMemoryCache none;
      check_row({from, blocking, plant, Status::kOutOfMemory,
                 from != From::kNothing ? "rank 2: cuda"
                 : allocation == 1      ? "rank 2: cudaHostAlloc"
                                        : "rank 2: cudaMalloc",
                 from == From::kNothing ? 0 : 3});
    }
  }
}

TEST_CASE("nccl making: ranks that succeed report the same error as the rank that failed",
          "[nccl]") {
  const auto make = [](int rank, std::unique_ptr<Transport> transport) {
    making_rank = rank;
    cuda::make_nccl_comm(failing_last, make_bootstrap(std::move(transport)), NcclOptions());
  };
  const std::string text =
      "rank 2: NCCL failed in ncclCommInitRankConfig: an error of the fake; set NCCL_DEBUG=WARN to "
      "see its log";
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

TEST_CASE("nccl making: the common error is kept if the program of a rank then ends the others",
          "[nccl]") {
  const auto fail = [](int rank, std::unique_ptr<Transport> transport) {
    const auto inner = make_bootstrap(transport->duplicate());
    try {
      cuda::nccl_run_with_alarm(*inner, false, [&](const Bootstrap&) {
        if (rank == 0) throw Error(Status::kComm, "a peer has ended");
        if (rank == 2) throw Error(Status::kDevice, "the GPU is lost");
      });
    } catch (const Error& e) {
      transport->abort_with_duplicates(e.status(), e.message());
      throw;
    }
  };
  check_rounds(Status::kDevice, "rank 2: the GPU is lost", fail);
}

TEST_CASE("nccl making: the rank that failed is reported although another rank is lost", "[nccl]") {
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto bootstrap = make_bootstrap(timed(group, rank, kNever));
    cuda::nccl_run_with_alarm(*bootstrap, false, [&](const Bootstrap& alarm) {
      if (rank == 1) throw Error(Status::kDevice, "the GPU is lost");
      while (!alarm.pending_error()) std::this_thread::yield();
      if (rank == 2) bootstrap->abort(Error(Status::kAborted, "stopped"));
    });
  });
  for (const auto& e : errors) {
    REQUIRE(e);
    CHECK(e->status() == Status::kDevice);
    CHECK(e->message() == "rank 1: the GPU is lost");
  }
}

TEST_CASE("nccl making: a duplicate that fails on one rank leaves the originals usable", "[nccl]") {
  const auto errors = on_nccl(3, kNever, [&](Comm& comm, Machine& machine) {
    barrier(comm);
    if (comm.rank() == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
    std::optional<Error> refused;
    try {
      comm.duplicate();
    } catch (const Error& e) {
      refused = e;
    }
    barrier(comm);
    exchange_with_all(comm, machine);
    machine.finish();
    barrier(comm);
    if (refused) throw *refused;
  });
  check_all(errors, Status::kComm, "rank 1: NCCL failed in ncclCommInitRankConfig");
}

TEST_CASE("nccl making: a rank whose split of a blocking parent fails reports its own error",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(3);
  const auto id = new_id();
  std::vector<NcclHandle> parents(3);
  const auto errors = on_ranks(3, [&](int rank) {
    CallerNcclComm theirs(id, 3, rank, true);
    theirs.lost = true;
    parents[static_cast<size_t>(rank)] = theirs.handle();
    NcclOptions options;
    options.from = theirs.handle();
    auto transport = timed(group, rank, 500);
    if (rank == 1) fake_nccl::refuse(1, cuda::kNcclSystemError);
    try {
      over_fake(std::move(transport), options);
    } catch (const Error&) {
      // The other ranks stay inside NCCL until their programs abort the caller's communicators.
      if (rank == 1)
        for (const int peer : {0, 2}) fake_nccl::api().abort(parents[static_cast<size_t>(peer)]);
      throw;
    }
  });
  INFO(text_of(errors));
  for (const auto& e : errors) CHECK(says(e, Status::kComm, "NCCL failed in ncclCommSplit"));
}

TEST_CASE(
    "nccl making: a borrowed communicator that is in use on one rank is reported by all ranks",
    "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  const auto errors = on_ranks(2, [&](int rank) {
    CallerNcclComm theirs(id, 2, rank, true);
    NcclOptions options;
    options.from = theirs.handle();
    options.borrow = true;
    const auto shared = cuda::SharedNcclComm::for_borrowed_handle(theirs.handle(), 0);
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
  check_all(errors, Status::kTimeout, "rank 1: nccl_comm is in use by a call");
}
