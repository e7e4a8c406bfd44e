#include <catch2/catch.hpp>
#include <future>
#include <string>

#include "muonrt/rendezvous.h"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

namespace {

/// Runs the ranks as threads, connects them and checks an allgather. Returns the errors of all
/// ranks.
std::string gather_errors(int size,
                          const std::function<muonrt_status_t(muonrt_comm_t**, int)>& make) {
  return transport_test::text_of(transport_test::on_ranks(size, [&](int rank) {
    muonrt_comm_t* comm = nullptr;
    if (make(&comm, rank) != MUONRT_OK) transport_test::require_none(muonrt_get_last_error());
    const auto mine = static_cast<int32_t>(rank * rank);
    std::vector<int32_t> all(static_cast<size_t>(size));
    const muonrt_status_t status = muonrt_comm_allgather(all.data(), comm, &mine, 4);
    muonrt_comm_destroy(comm);
    if (status != MUONRT_OK) transport_test::require_none(muonrt_get_last_error());
    for (int r = 0; r < size; ++r) {
      if (all[static_cast<size_t>(r)] != r * r) transport_test::require_none("a wrong value");
    }
  }));
}

}  // namespace

TEST_CASE("rendezvous abi: ranks connect over TCP and in a folder", "[unit][comm][rendezvous]") {
  // An address other than the first one of the interface.
  const std::string address = "127.0.0.9:" + std::to_string(loopback::free_port());
  const std::string secret = "this run's secret";
  CHECK(gather_errors(3, [&](muonrt_comm_t** comm, int rank) {
          muonrt_tcp_options_t tcp;
          muonrt_tcp_options_init(&tcp);
          tcp.rank = rank;
          tcp.size = 3;
          tcp.address = address.c_str();
          tcp.interface_name = "lo";
          tcp.first_port = 20'000;
          tcp.last_port = 60'000;
          tcp.secret = secret.data();
          tcp.secret_bytes = std::ssize(secret);
          return muonrt_comm_create_tcp(comm, &tcp);
        }) == "");
  const loopback::Folder folder;
  CHECK(gather_errors(3, [&](muonrt_comm_t** comm, int rank) {
          muonrt_folder_options_t options;
          muonrt_folder_options_init(&options);
          options.rank = rank;
          options.size = 3;
          options.path = folder.path().c_str();
          options.run_id = "abi";
          options.secret = secret.data();
          options.secret_bytes = std::ssize(secret);
          return muonrt_comm_create_folder(comm, &options);
        }) == "");
}

TEST_CASE("rendezvous abi: an error names a field that is not set", "[unit][comm][rendezvous]") {
  muonrt_comm_t* comm = nullptr;
  muonrt_tcp_options_t tcp;
  muonrt_tcp_options_init(&tcp);
  const auto check_tcp_error = [&](const char* text) {
    CHECK(muonrt_comm_create_tcp(&comm, &tcp) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  check_tcp_error("options.address is NULL");
  tcp.address = "localhost:1234";
  check_tcp_error("options.secret is NULL");
  tcp.secret = "0123456789abcdef";
  tcp.secret_bytes = 15;
  check_tcp_error("secret_bytes is 15, but must be between 16 and 4096");
  tcp.secret_bytes = 16;
  check_tcp_error("rank -1 of 0");
  tcp.timeout_ms = 0;
  check_tcp_error("timeout_ms is 0");
  CHECK(muonrt_comm_create_tcp(&comm, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_comm_create_tcp(nullptr, &tcp) == MUONRT_ERROR_INVALID_ARGUMENT);
  muonrt_folder_options_t folder;
  muonrt_folder_options_init(&folder);
  const auto check_folder_error = [&](const char* text) {
    CHECK(muonrt_comm_create_folder(&comm, &folder) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  check_folder_error("options.path is NULL");
  folder.path = "/tmp";
  check_folder_error("options.run_id is NULL");
  folder.run_id = "run";
  folder.secret_bytes = 8;
  check_folder_error("options.secret is NULL");
  folder.secret = "123456789abcdef";
  folder.secret_bytes = 15;
  check_folder_error("secret_bytes is 15, but must be between 16 and 4096");
  CHECK(comm == nullptr);
}

TEST_CASE("rendezvous abi: rank 0 uses a free port and reports its address",
          "[unit][comm][rendezvous]") {
  std::promise<std::string> listening;
  const std::shared_future<std::string> address = listening.get_future().share();
  CHECK(gather_errors(3, [&](muonrt_comm_t** comm, int rank) {
          muonrt_tcp_options_t tcp;
          muonrt_tcp_options_init(&tcp);
          tcp.rank = rank;
          tcp.size = 3;
          const std::string where = rank == 0 ? "127.0.0.1:0" : address.get();
          tcp.address = where.c_str();
          tcp.secret = "0123456789abcdef";
          tcp.secret_bytes = 16;
          tcp.state = &listening;
          tcp.listening = [](void* state, const char* text) {
            static_cast<std::promise<std::string>*>(state)->set_value(text);
            return int32_t{0};
          };
          return muonrt_comm_create_tcp(comm, &tcp);
        }) == "");
  CHECK(address.get().find("127.0.0.1:") == 0);
  CHECK(address.get() != "127.0.0.1:0");
}

TEST_CASE("rendezvous abi: port 0 is rejected if no function reports the port",
          "[unit][comm][rendezvous]") {
  muonrt_tcp_options_t tcp;
  muonrt_tcp_options_init(&tcp);
  tcp.rank = 0;
  tcp.size = 2;
  tcp.address = "127.0.0.1:0";
  tcp.secret = "0123456789abcdef";
  tcp.secret_bytes = 16;
  const auto check_error = [&](muonrt_status_t status, const char* text) {
    muonrt_comm_t* comm = nullptr;
    CHECK(muonrt_comm_create_tcp(&comm, &tcp) == status);
    CHECK(comm == nullptr);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  check_error(MUONRT_ERROR_INVALID_ARGUMENT, "the other ranks cannot learn which one");
  tcp.listening = [](void*, const char*) { return int32_t{7}; };
  check_error(MUONRT_ERROR_CALLBACK, "options.listening returned 7 for 127.0.0.1:");
  tcp.rank = 1;
  check_error(MUONRT_ERROR_INVALID_ARGUMENT, "'127.0.0.1:0' on rank 1");
}
