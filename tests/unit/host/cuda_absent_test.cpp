// Tests a machine without a GPU: settings, optimizers and communicators for GPUs are rejected, and
// the error names the reason.

#include <catch2/catch.hpp>
#include <string>

#include "backend/cuda_device.hpp"
#include "comm/host_comm.hpp"
#include "comm/self_transport.hpp"
#include "host/host_device.hpp"
#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/nccl.h"
#include "optimizer/optimizer.hpp"
#include "support/forwarding_comm.hpp"
#include "support/one_matrix.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using Catch::Contains;

namespace {

/// Creates an optimizer on one rank with the changed options, and returns the status and the
/// message.
template <class Change>
std::pair<muonrt_status_t, std::string> create(int32_t device, const Change& change) {
  muonrt_tuning_options_t tuning;
  muonrt_tuning_options_init(&tuning);
  CHECK(tuning.graphs == 0);
  CHECK(tuning.symmetric == MUONRT_SYMMETRIC_DEFAULT);
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.device = device;
  options.tuning = &tuning;
  change(options, tuning);
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  OneMatrix trainer;
  const muonrt_status_t status = trainer.create(comm, &options);
  const std::string message = status == MUONRT_OK ? "" : muonrt_get_last_error();
  trainer.destroy();
  muonrt_comm_destroy(comm);
  return {status, message};
}

/// A communicator whose operations occupy SMs.
class Filling final : public ForwardingComm {
 public:
  Filling() : ForwardingComm(std::make_unique<HostComm>(make_self_transport())) {}
  int occupied_sms() const override { return 6; }
};

}  // namespace

TEST_CASE("no GPU: creating a CUDA optimizer returns NOT_SUPPORTED", "[unit][cuda]") {
  if (cuda_device_count() > 0) return;  // the tests gpu.* run on machines with a GPU
  for (const int32_t index : {0, 1, -1}) {
    const auto [status, message] =
        create(MUONRT_DEVICE_CUDA, [&](auto& options, auto&) { options.device_index = index; });
    CHECK(status == MUONRT_ERROR_NOT_SUPPORTED);
    CHECK_THAT(message, Contains("no CUDA device") && Contains("MUONRT_DEVICE_HOST"));
  }
}

TEST_CASE("no GPU: creating a communicator of GPU memory returns NOT_SUPPORTED", "[unit][cuda]") {
  if (cuda_device_count() > 0) return;
  muonrt_comm_t* host = nullptr;
  REQUIRE(muonrt_comm_create_self(&host) == MUONRT_OK);
  for (const bool staged : {false, true}) {
    auto* comm = host;
    CHECK((staged ? muonrt_comm_create_staged(&comm, host, 0)
                  : muonrt_comm_create_nccl(&comm, host, nullptr)) == MUONRT_ERROR_NOT_SUPPORTED);
    CHECK_THAT(muonrt_get_last_error(), Contains("no CUDA device"));
    CHECK(comm == nullptr);
  }
  muonrt_comm_destroy(host);
  int32_t version = -1;
  const muonrt_status_t status = muonrt_nccl_get_version(&version);
  CHECK((status == MUONRT_ERROR_NOT_SUPPORTED || (cuda_is_built() && version >= 21900)));
}

TEST_CASE("no GPU: an invalid argument of one rank is an error on every rank", "[unit][cuda]") {
  struct Bad {
    const char* words;
    void (*change)(muonrt_nccl_options_t&);  // null: create a staged communicator with comm NULL
  };
  for (const Bad& bad : {Bad{"max_ctas is 12", [](auto& o) { o.max_ctas = 12; }},
                         Bad{"max_ctas is 0", [](auto& o) { o.max_ctas = 0; }},
                         Bad{"nccl_comm is NULL", [](auto& o) { o.borrow = 1; }},
                         Bad{"struct_size is 8", [](auto& o) { o.struct_size = 8; }},
                         Bad{"comm is NULL", nullptr}}) {
    muonrt_thread_group_t* group = nullptr;
    REQUIRE(muonrt_thread_group_create(&group, 3) == MUONRT_OK);
    const auto errors = transport_test::on_ranks(3, [&](int rank) {
      muonrt_comm_t *host = nullptr, *comm = nullptr;
      muonrt_comm_create_thread(&host, group, rank);
      muonrt_comm_set_timeout(host, 20000);
      muonrt_nccl_options_t options;
      muonrt_nccl_options_init(&options);
      if (rank == 1 && bad.change) bad.change(options);
      const muonrt_status_t status =
          bad.change ? muonrt_comm_create_nccl(&comm, host, &options)
                     : muonrt_comm_create_staged(rank == 1 ? nullptr : &comm, host, 0);
      const std::string text = muonrt_get_last_error();
      muonrt_comm_destroy(host);
      throw Error(static_cast<Status>(status), text);
    });
    muonrt_thread_group_destroy(group);
    for (const auto& error : errors) {
      CHECK(error->status() == Status::kInvalidArgument);
      CHECK_THAT(error->message(),
                 Catch::StartsWith("rank 1: muonrt_comm_create_") && Contains(bad.words));
    }
  }
}

TEST_CASE("GPU settings: invalid values, and GPU settings on the host, are rejected",
          "[unit][cuda][abi]") {
  using Options = muonrt_tuning_options_t;
  struct Bad {
    enum muonrt_device device;
    int32_t Options::*field;
    int32_t value;
    const char* words;
  };
  const auto host = MUONRT_DEVICE_HOST, cuda = MUONRT_DEVICE_CUDA;
  CHECK(create(host, [](auto&, auto&) {}).first == MUONRT_OK);
  for (const Bad& bad : {Bad{cuda, &Options::graphs, 2, "graphs is 2"},
                         Bad{cuda, &Options::symmetric, 4, "symmetric is 4"},
                         Bad{cuda, &Options::symmetric, -1, "symmetric is -1"},
                         Bad{host, &Options::graphs, 1, "graphs is 1"},
                         Bad{host, &Options::symmetric, MUONRT_SYMMETRIC_SM90, "symmetric is 2"}}) {
    const auto [status, message] =
        create(bad.device, [&](auto&, auto& tuning) { tuning.*bad.field = bad.value; });
    INFO(message);
    CHECK(status == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(message, Contains(bad.words) && Contains(bad.device == host ? "host" : ""));
  }
}

TEST_CASE("GPU settings: the SMs that the communicator occupies are reserved", "[unit][pipeline]") {
  const auto reserved = [](Comm& comm) {
    OptimizerSettings settings;
    settings.groups = {GroupSettings::defaults(Role::kMuon)};
    float data[6] = {}, grad[6] = {};
    ParamSettings p;
    p.name = "w";
    p.data = data;
    p.grad = grad;
    p.layout = Layout::from_placements(
        std::make_shared<Mesh>(std::vector<int64_t>{1}, std::vector<std::string>{},
                               std::vector<int32_t>{}),
        {2, 3}, {Placement{}}, Reading::kLiteral);
    settings.params = {p};
    int seen = -1;
    Optimizer::create(
        comm, [&] { return settings; },
        [&](const OptimizerSettings& s) {
          seen = s.reserved_sms;
          return host::make_host_device({.threads = 1, .portable_gemm = true});
        });
    return seen;
  };
  Filling filling;
  HostComm quiet(make_self_transport());
  CHECK(reserved(filling) == 6);
  CHECK(reserved(quiet) == 0);
}
