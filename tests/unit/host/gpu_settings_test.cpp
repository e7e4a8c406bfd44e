// Settings of a GPU: refused by name where they mean nothing; SMs left to the communicator.

#include <catch2/catch.hpp>
#include <string>

#include "comm/host_comm.hpp"
#include "comm/self_transport.hpp"
#include "host/host_device.hpp"
#include "optimizer/optimizer.hpp"
#include "support/one_matrix.hpp"
#include "support/passing_comm.hpp"

using namespace muonrt;

namespace {

/// The status and message of a creation with these options, on one rank.
template <class Change>
std::pair<muonrt_status_t, std::string> create(int32_t device, const Change& change) {
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  CHECK(options.graphs == 0);
  CHECK(options.symmetric == MUONRT_SYMMETRIC_DEFAULT);
  options.device = device;
  change(options);
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  OneMatrix trainer;
  const muonrt_status_t status = trainer.create(comm, &options);
  const std::string message = status == MUONRT_OK ? "" : muonrt_last_error();
  trainer.destroy();
  muonrt_comm_destroy(comm);
  return {status, message};
}

/// A communicator whose operations fill SMs.
class Filling final : public PassingComm {
 public:
  Filling() : PassingComm(std::make_unique<HostComm>(make_self_transport())) {}
  int occupied_sms() const override { return 6; }
};

}  // namespace

TEST_CASE("GPU settings: values that are none are refused by name, with a GPU or without",
          "[unit][cuda][abi]") {
  struct Bad {
    int32_t muonrt_optimizer_options_t::*field;
    int32_t value;
    const char* words;
  };
  for (const Bad& bad : {Bad{&muonrt_optimizer_options_t::graphs, 2, "graphs is 2"},
                         Bad{&muonrt_optimizer_options_t::symmetric, 4, "symmetric is 4"},
                         Bad{&muonrt_optimizer_options_t::symmetric, -1, "symmetric is -1"}}) {
    const auto [status, message] =
        create(MUONRT_DEVICE_CUDA, [&](auto& options) { options.*bad.field = bad.value; });
    INFO(message);
    CHECK(status == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(message.find(bad.words) != std::string::npos);
  }
}

TEST_CASE("GPU settings: on the host they are refused by name", "[unit][cuda][abi]") {
  CHECK(create(MUONRT_DEVICE_HOST, [](auto&) {}).first == MUONRT_OK);
  const auto refused = [](const auto& change, const std::string& field) {
    const auto [status, message] = create(MUONRT_DEVICE_HOST, change);
    return status == MUONRT_ERROR_INVALID_ARGUMENT && message.find(field) != std::string::npos &&
           message.find("host") != std::string::npos;
  };
  CHECK(refused([](auto& o) { o.graphs = 1; }, "graphs is 1"));
  CHECK(refused([](auto& o) { o.symmetric = MUONRT_SYMMETRIC_SM90; }, "symmetric is 3"));
}

TEST_CASE("GPU settings: as many SMs are reserved as the communicator fills", "[unit][pipeline]") {
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
