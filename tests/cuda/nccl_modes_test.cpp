#include <atomic>
#include <catch2/catch.hpp>
#include <memory>

#include "cuda/cuda_device.hpp"
#include "cuda/nccl_link.hpp"
#include "cuda/nccl_meeting.hpp"
#include "cuda/nccl_ranks.hpp"

// What NCCL's versions, and communicators of the caller's, ask of one over the fake NCCL.

using namespace muonrt;
using namespace cuda_test;

namespace {

using cuda::NcclHandle;

/// The caller's communicator of a rank, made by the fake; destroyed at the end unless it has ended.
class Theirs {
 public:
  Theirs(const cuda::NcclUniqueId& id, int size, int rank, bool blocking) {
    cuda::NcclConfig config;
    config.blocking = blocking;
    api_.init(&handle_, size, id, rank, &config);
    while (!blocking) {
      cuda::NcclResult state = cuda::kNcclInProgress;
      api_.async_error(handle_, &state);
      if (state == cuda::kNcclSuccess) break;
      std::this_thread::yield();
    }
    int n = 0;
    api_.count(handle_, &n);
  }
  ~Theirs() {
    if (!lost) api_.destroy(handle_);
  }
  Theirs(const Theirs&) = delete;
  Theirs& operator=(const Theirs&) = delete;

  NcclHandle handle() const { return handle_; }
  /// Work of the caller's own on it.
  void use(Machine& machine) {
    auto* const value = machine.put(std::vector<int64_t>{1});
    api_.all_reduce(value, value, 1, cuda::kNcclInt64, cuda::kNcclSum, handle_,
                    cuda::handle_of(machine.on()));
    int n = 0;
    api_.count(handle_, &n);
  }
  bool lost = false;

 private:
  const cuda::NcclApi& api_ = fake_nccl::api();
  NcclHandle handle_ = nullptr;
};

cuda::NcclUniqueId new_id() {
  cuda::NcclUniqueId id{};
  fake_nccl::api().get_unique_id(&id);
  return id;
}

std::unique_ptr<Transport> timed(ThreadGroup& group, int rank, int64_t timeout_ms) {
  auto transport = group.transport(rank);
  transport->set_timeout_ms(timeout_ms);
  return transport;
}

/// `times` exchanges of a message to each other rank and one from each, without a wait between.
void exchange_with_all(Comm& comm, Machine& machine, int times = 1) {
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    sends.push_back({peer, machine.put(std::vector<int64_t>{7}), 8});
    receives.push_back({peer, machine.put(std::vector<int64_t>{0}), 8});
  }
  for (int i = 0; i < times; ++i) comm.exchange(machine.on(), sends, receives);
}

void meet(Comm& comm) {
  std::vector<char> all(static_cast<size_t>(comm.size()));
  comm.allgather("", all.data(), 1);
}

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

TEST_CASE("nccl modes: a borrowed communicator is aborted once, whoever ends first", "[nccl]") {
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
    "nccl modes: communicators that borrow one each for themselves end together, and only they",
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

TEST_CASE("nccl modes: a handle with the value of one that was aborted is another one", "[nccl]") {
  int place = 0;
  const auto handle = reinterpret_cast<NcclHandle>(&place);
  const auto first = cuda::NcclShared::of_borrowed(handle, 0);
  CHECK(cuda::NcclShared::of_borrowed(handle, 0) == first);
  first->fail(Error(Status::kAborted, "enough"));
  const auto second = cuda::NcclShared::of_borrowed(handle, 0);
  CHECK(second != first);
  CHECK_FALSE(second->error());
  CHECK(cuda::NcclShared::of_borrowed(handle, 0) == second);
}

TEST_CASE("nccl modes: what has lost its borrowed communicator makes no duplicate", "[nccl]") {
  const auto errors = on_borrowed([&](Comm& comm, Machine&) {
    const auto twin = comm.duplicate();
    meet(comm);
    twin->abort(Status::kTimeout, "a step was late");
    comm.duplicate();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "a step was late"));
  check_rules();
}

TEST_CASE("nccl modes: a sibling's abort delivers nothing to the other's reduction", "[nccl]") {
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

TEST_CASE("nccl modes: ranks of another world are refused before a parent that blocks is split",
          "[nccl]") {
  fake_nccl::reset();
  ThreadGroup group(2);
  const auto id = new_id();
  const auto errors = on_ranks(2, [&](int rank) {
    Theirs theirs(id, 2, rank, true);
    NcclOptions options;
    options.from = theirs.handle();
    options.device_index = rank;  // rank 1's is on 0
    over_fake(timed(group, rank, kLong), options);
  });
  for (const auto& e : errors)
    CHECK(says(e, Status::kInvalidArgument, "rank 1: nccl_comm has rank 1 of 2 on CUDA device 0"));
  CHECK(fake_nccl::counts().made == 2);
  check_rules();
}

TEST_CASE("nccl modes: a peer that does not come to the first group of one that blocks ends it",
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

TEST_CASE("nccl modes: an abort ends a call that is stuck inside one that blocks", "[nccl]") {
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

TEST_CASE("nccl modes: blocks are not launched as clusters, which the SMs left free may not hold",
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
      if (config.cga_cluster_size != 0 || config.max_ctas != 8 || config.blocking != 0)
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

TEST_CASE("nccl modes: options that would make ranks wait for one another are compared", "[nccl]") {
  const auto made_with = [](const std::function<void(int, NcclOptions&)>& change) {
    fake_nccl::reset();
    ThreadGroup group(2);
    const auto id = new_id();
    return on_ranks(2, [&](int rank) {
      Theirs theirs(id, 2, rank, false);
      NcclOptions options;
      options.from = theirs.handle();
      change(rank, options);
      over_fake(timed(group, rank, 2000), options);
    });
  };
  const auto ctas = made_with([](int rank, NcclOptions& o) { o.max_ctas = rank == 0 ? 4 : 8; });
  for (const auto& e : ctas)
    CHECK(says(e, Status::kMismatch, "max_ctas differs (4 on ranks [0]; 8 on ranks [1])"));
  const auto channels =
      made_with([](int rank, NcclOptions& o) { o.channels_per_net_peer = 2 * rank; });
  for (const auto& e : channels)
    CHECK(says(e, Status::kMismatch, "channels_per_net_peer differs (0 on ranks [0]; 2 on"));
  const auto from = made_with([](int rank, NcclOptions& o) {
    if (rank == 0) o.from = nullptr;
  });
  for (const auto& e : from)
    CHECK(says(e, Status::kMismatch,
               "nccl_comm and borrow differ (none on ranks [0]; one to split on ranks [1])"));
  const auto borrow = made_with([](int rank, NcclOptions& o) { o.borrow = rank == 1; });
  for (const auto& e : borrow) CHECK(says(e, Status::kMismatch, "one to borrow on ranks [1]"));
}
