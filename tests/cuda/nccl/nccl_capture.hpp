#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "backend/comm.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/cuda_graph.hpp"
#include "cuda/machine.hpp"
#include "cuda/nccl/nccl_api.hpp"

// Checks NCCL on streams that are being captured, for the real and the fake library.
namespace cuda_test {

/// Waits while a non-blocking communicator returns "in progress".
inline muonrt::cuda::NcclResult settled(const muonrt::cuda::NcclApi& api,
                                        muonrt::cuda::NcclHandle handle) {
  using muonrt::cuda::kNcclInProgress;
  muonrt::cuda::NcclResult state = kNcclInProgress;
  for (int turn = 0; turn < 60'000; ++turn) {
    if (api.async_error(handle, &state) != 0 || state != kNcclInProgress) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

/// Checks a communicator of one rank that sends to itself on a captured stream. The graph is
/// launched three times. Each time the receiver must get the current contents of the buffer.
inline void check_captured_exchange(const muonrt::cuda::NcclApi& api) {
  using namespace muonrt::cuda;
  constexpr int64_t kCount = 5000;
  Machine machine(make_device(true));
  NcclUniqueId id{};
  REQUIRE(api.get_unique_id(&id) == kNcclSuccess);
  NcclConfig config;
  config.blocking = 0;
  NcclHandle comm = nullptr;
  const NcclResult made = api.init(&comm, 1, id, 0, &config);
  REQUIRE((made == kNcclSuccess || made == kNcclInProgress));
  REQUIRE(settled(api, comm) == kNcclSuccess);
  float* const from = machine.put(std::vector<float>(kCount, 1.0f));
  float* const to = machine.put(std::vector<float>(kCount, 0.0f));
  const cudaStream_t stream = handle_of(machine.on());
  const auto exchange = [&] {
    api.group_start();
    api.send(from, kCount * sizeof(float), kNcclInt8, 0, comm, stream);
    api.receive(to, kCount * sizeof(float), kNcclInt8, 0, comm, stream);
    const NcclResult ended = api.group_end();
    CHECK((ended == kNcclSuccess || ended == kNcclInProgress));
    CHECK(settled(api, comm) == kNcclSuccess);
  };
  exchange();  // creates the connections
  CHECK(machine.get(to, kCount) == std::vector<float>(kCount, 1.0f));
  begin_capture(stream);
  exchange();
  {
    const CudaGraph graph(0, stream);
    for (int replay = 2; replay < 5; ++replay) {
      const std::vector<float> fresh(kCount, static_cast<float>(replay));
      const auto staging = muonrt::Buffer::shared(*machine.device, kCount * 4);
      std::memcpy(staging.data(), fresh.data(), kCount * sizeof(float));
      machine.ops().copy(machine.on(), from, staging.data(), kCount * 4);
      graph.launch(stream);
      CHECK(machine.get(to, kCount) == fresh);
    }
  }
  api.finalize(comm);
  settled(api, comm);
  api.destroy(comm);
}

/// Checks that operations on a captured stream are rejected with `text`, that the capture stays
/// valid, and that the communicator of one rank can still be used.
inline void check_capture_rejected(muonrt::Comm& comm, Machine& machine, const std::string& text) {
  using namespace muonrt::cuda;
  auto* const value = machine.put(std::vector<int64_t>{7});
  const muonrt::SendTo send{0, value, 8};
  const muonrt::ReceiveFrom receive{0, machine.put(std::vector<int64_t>{0}), 8};
  const auto refused = [&](const auto& work) {
    try {
      work();
    } catch (const muonrt::Error& e) {
      return e.status() == muonrt::Status::kNotSupported &&
             e.message().find(text) != std::string::npos;
    }
    return false;
  };
  begin_capture(handle_of(machine.on()));
  const bool exchange = refused([&] { comm.exchange(machine.on(), {&send, 1}, {&receive, 1}); });
  const bool sum = refused([&] { comm.reduce_sum(machine.on(), value, value, 1); });
  CHECK_NOTHROW(CudaGraph(0, handle_of(machine.on())));
  CHECK(exchange);
  CHECK(sum);
  CHECK_FALSE(comm.error().has_value());
  comm.exchange(machine.on(), {&send, 1}, {&receive, 1});
  CHECK(machine.get_one(static_cast<const int64_t*>(receive.data)) == 7);
}

}  // namespace cuda_test
