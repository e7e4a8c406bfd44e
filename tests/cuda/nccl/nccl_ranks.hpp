#pragma once

#include <catch2/catch.hpp>

#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/fake_nccl.hpp"
#include "cuda/nccl/nccl_comm.hpp"
#include "cuda/nccl/worlds.hpp"

// Ranks that are threads, with communicators that use the fake NCCL.
namespace cuda_test {

using namespace muonrt;
using transport_test::on_ranks;
using transport_test::require_none;
using transport_test::text_of;

inline constexpr int64_t kLong = 60'000;

inline std::unique_ptr<Comm> over_fake(std::unique_ptr<Transport> transport,
                                       NcclOptions options = {}) {
  return cuda::make_nccl_comm(fake_nccl::api, make_bootstrap(std::move(transport)), options);
}
inline std::unique_ptr<Comm> nccl_over_fake(std::unique_ptr<Transport> transport) {
  return over_fake(std::move(transport));
}

/// Runs `work` on ranks that are threads, each with a communicator and a device.
inline std::vector<std::optional<Error>> on_nccl(int size, int64_t timeout_ms,
                                                 const std::function<void(Comm&, Machine&)>& work) {
  fake_nccl::reset();
  ThreadGroup group(size);
  return on_ranks(size, [&](int rank) {
    auto transport = group.transport(rank);
    transport->set_timeout_ms(kLong);
    const auto comm = nccl_over_fake(std::move(transport));
    comm->set_timeout_ms(timeout_ms);
    Machine machine(world_device());
    work(*comm, machine);
  });
}

inline bool says(const std::optional<Error>& error, Status status, const std::string& text) {
  return error && error->status() == status && error->message().find(text) != std::string::npos;
}

inline void check_rules() {
  for (const std::string& problem : fake_nccl::problems()) FAIL_CHECK(problem);
}

}  // namespace cuda_test
