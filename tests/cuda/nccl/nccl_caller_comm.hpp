#pragma once

#include <memory>

#include "cuda/device/cuda_device.hpp"
#include "cuda/nccl/nccl_ranks.hpp"

// The caller's communicators with the fake NCCL, and operations of ranks on these communicators.
namespace cuda_test {

using cuda::NcclHandle;

/// A rank's communicator that the caller has created with the fake NCCL. The destructor destroys it
/// unless `lost` is true.
class CallerNcclComm {
 public:
  CallerNcclComm(const cuda::NcclUniqueId& id, int size, int rank, bool blocking) {
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
  ~CallerNcclComm() {
    if (!lost) api_.destroy(handle_);
  }
  CallerNcclComm(const CallerNcclComm&) = delete;
  CallerNcclComm& operator=(const CallerNcclComm&) = delete;

  NcclHandle handle() const { return handle_; }
  /// Enqueues an operation of the caller on this communicator.
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

inline cuda::NcclUniqueId new_id() {
  cuda::NcclUniqueId id{};
  fake_nccl::api().get_unique_id(&id);
  return id;
}

/// How muonrt's communicator is created from the caller's communicator.
struct Origin {
  bool blocking, borrow;
};

/// Runs `function` on ranks that are threads. Each rank has a device, and a communicator that
/// splits or borrows a communicator of the caller.
inline std::vector<std::optional<Error>> on_caller_comm(
    int size, Origin origin,
    const std::function<void(Comm&, Machine&, CallerNcclComm&)>& function) {
  fake_nccl::reset();
  ThreadGroup group(size);
  const auto id = new_id();
  return on_ranks(size, [&](int rank) {
    CallerNcclComm theirs(id, size, rank, origin.blocking);
    NcclOptions options;
    options.from = theirs.handle();
    options.borrow = origin.borrow;
    auto transport = group.transport(rank);
    transport->set_timeout_ms(kLong);
    const auto comm = over_fake(std::move(transport), options);
    Machine machine(world_device());
    function(*comm, machine, theirs);
  });
}

inline std::unique_ptr<Transport> timed(ThreadGroup& group, int rank, int64_t timeout_ms) {
  auto transport = group.transport(rank);
  transport->set_timeout_ms(timeout_ms);
  return transport;
}

/// Enqueues `times` exchanges without waiting between them. In each exchange, the rank sends a
/// message to every other rank and receives a message from it.
inline void exchange_with_all(Comm& comm, Machine& machine, int times = 1) {
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    sends.push_back({peer, machine.put(std::vector<int64_t>{7}), 8});
    receives.push_back({peer, machine.put(std::vector<int64_t>{0}), 8});
  }
  for (int i = 0; i < times; ++i) comm.exchange(machine.on(), sends, receives);
}

inline void barrier(Comm& comm) {
  std::vector<char> all(static_cast<size_t>(comm.size()));
  comm.allgather("", all.data(), 1);
}

}  // namespace cuda_test
