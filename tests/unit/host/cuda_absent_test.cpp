#include <catch2/catch.hpp>
#include <string>

#include "backend/cuda_device.hpp"
#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/nccl.h"
#include "support/one_matrix.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;

namespace {

struct Created {
  muonrt_status_t status;
  std::string message;
  bool is_null;
};

Created create_on_cuda(int32_t index) {
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.device = MUONRT_DEVICE_CUDA;
  options.device_index = index;
  OneMatrix trainer;
  trainer.optimizer = reinterpret_cast<muonrt_optimizer_t*>(&options);
  const muonrt_status_t status = trainer.create(comm, &options, MUONRT_ROLE_ADAMW);
  const Created out{status, muonrt_last_error(), trainer.optimizer == nullptr};
  muonrt_comm_destroy(comm);
  return out;
}

}  // namespace

TEST_CASE("no GPU: a CUDA optimizer is refused with a status that says so", "[unit][cuda]") {
  if (cuda_device_count() > 0) return;  // the tests called gpu.* look at such machines
  for (const int32_t index : {0, 1, -1}) {
    const Created got = create_on_cuda(index);
    CHECK(got.status == MUONRT_ERROR_NOT_SUPPORTED);
    CHECK(got.message.find("no CUDA device") != std::string::npos);
    CHECK(got.message.find("MUONRT_DEVICE_HOST") != std::string::npos);
    CHECK(got.is_null);
  }
}

TEST_CASE("no GPU: the door says so without an error", "[unit][cuda]") {
  CHECK(cuda_device_count() >= 0);
  if (!cuda_is_built()) CHECK(cuda_device_count() == 0);
  if (cuda_device_count() > 0) return;
  try {
    make_cuda_device(0);
    FAIL("made a device");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kNotSupported);
    CHECK(e.message().find("no CUDA device") != std::string::npos);
  }
}

TEST_CASE("no GPU: communicators of GPU memory are refused on every rank, by name",
          "[unit][cuda]") {
  if (cuda_device_count() > 0) return;
  muonrt_comm_t* host = nullptr;
  REQUIRE(muonrt_comm_create_self(&host) == MUONRT_OK);
  auto* comm = host;
  CHECK(muonrt_comm_create_nccl(&comm, host, nullptr) == MUONRT_ERROR_NOT_SUPPORTED);
  CHECK(std::string(muonrt_last_error()).find("no CUDA device") != std::string::npos);
  CHECK(comm == nullptr);
  comm = host;
  CHECK(muonrt_comm_create_staged(&comm, host, 0) == MUONRT_ERROR_NOT_SUPPORTED);
  CHECK(std::string(muonrt_last_error()).find("no CUDA device") != std::string::npos);
  CHECK(comm == nullptr);
  muonrt_comm_destroy(host);
  int32_t version = -1;
  const muonrt_status_t status = muonrt_nccl_version(&version);
  if (!cuda_is_built()) {
    CHECK(status == MUONRT_ERROR_NOT_SUPPORTED);
    CHECK(std::string(muonrt_last_error()).find("no CUDA device") != std::string::npos);
  } else {
    CHECK((status == MUONRT_ERROR_NOT_SUPPORTED || version >= 21900));
  }
}

TEST_CASE("no GPU: bad options of an NCCL communicator are told before anything is sent",
          "[unit][cuda]") {
  muonrt_comm_t *host = nullptr, *comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&host) == MUONRT_OK);
  const auto refused = [&](const auto& change, const char* words) {
    muonrt_nccl_options_t options;
    muonrt_nccl_options_init(&options);
    CHECK(options.max_ctas == 8);
    change(options);
    return muonrt_comm_create_nccl(&comm, host, &options) == MUONRT_ERROR_INVALID_ARGUMENT &&
           std::string(muonrt_last_error()).find(words) != std::string::npos;
  };
  CHECK(refused([](auto& o) { o.max_ctas = 12; }, "max_ctas is 12"));
  CHECK(refused([](auto& o) { o.max_ctas = 0; }, "max_ctas is 0"));
  CHECK(refused([](auto& o) { o.borrow = 1; }, "nccl_comm is null"));
  CHECK(refused([](auto& o) { o.struct_size = 8; }, "struct_size is 8"));
  CHECK(muonrt_comm_create_nccl(nullptr, host, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_comm_create_nccl(&comm, nullptr, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  muonrt_comm_destroy(host);
}

TEST_CASE("nccl: what is wrong with one rank's arguments is told on every rank", "[unit][cuda]") {
  for (const bool staged : {false, true}) {
    muonrt_thread_group_t* group = nullptr;
    REQUIRE(muonrt_thread_group_create(&group, 3) == MUONRT_OK);
    const auto errors = transport_test::on_ranks(3, [&](int rank) {
      muonrt_comm_t *host = nullptr, *comm = nullptr;
      muonrt_comm_create_thread(&host, group, rank);
      muonrt_comm_set_timeout(host, 20000);
      muonrt_nccl_options_t options;
      muonrt_nccl_options_init(&options);
      if (rank == 1) options.max_ctas = 3;
      muonrt_comm_t** const out = rank == 1 && staged ? nullptr : &comm;
      const muonrt_status_t status = staged ? muonrt_comm_create_staged(out, host, 0)
                                            : muonrt_comm_create_nccl(out, host, &options);
      const std::string text = muonrt_last_error();
      muonrt_comm_destroy(host);
      throw Error(static_cast<Status>(status), text);
    });
    muonrt_thread_group_destroy(group);
    for (const auto& error : errors) {
      CHECK(error->status() == Status::kInvalidArgument);
      CHECK(error->message().find(staged ? "rank 1: muonrt_comm_create_staged: comm is null"
                                         : "rank 1: muonrt_comm_create_nccl: max_ctas is 3") == 0);
    }
  }
}
