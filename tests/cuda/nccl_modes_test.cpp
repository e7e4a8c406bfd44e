#include <atomic>
#include <catch2/catch.hpp>
#include <memory>

#include "cuda/cuda_device.hpp"
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
