#include <catch2/catch.hpp>
#include <future>
#include <string>

#include "muonrt/rendezvous.h"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

namespace {

constexpr char kSecret[] = "0123456789abcdef";  // 16 bytes without the final zero

muonrt_tcp_options_t tcp_options(int rank, int size, const char* address) {
  muonrt_tcp_options_t out;
  muonrt_tcp_options_init(&out);
  out.rank = rank;
  out.size = size;
  out.address = address;
  out.secret = kSecret;
  out.secret_bytes = 16;
  return out;
}

/// Connects three threads as ranks, and checks an allgather. Returns the errors of all ranks.
std::string gather_errors(const std::function<muonrt_status_t(muonrt_comm_t**, int)>& make) {
  return transport_test::text_of(transport_test::on_ranks(3, [&](int rank) {
    muonrt_comm_t* comm = nullptr;
    const int32_t mine = rank * rank;
    std::vector<int32_t> all(3);
    const bool gathered = make(&comm, rank) == MUONRT_OK &&
                          muonrt_comm_allgather(all.data(), comm, &mine, 4) == MUONRT_OK;
    muonrt_comm_destroy(comm);
    if (!gathered) transport_test::require_none(muonrt_get_last_error());
    if (all != std::vector{0, 1, 4}) transport_test::require_none("a wrong value");
  }));
}

}  // namespace

TEST_CASE("rendezvous abi: ranks connect at an address and in a folder", "[unit][rendezvous]") {
  std::promise<std::string> listening;
  const std::shared_future<std::string> address = listening.get_future().share();
  CHECK(gather_errors([&](muonrt_comm_t** comm, int rank) {
          // An address other than the first one of the interface.
          const std::string where = rank == 0 ? "127.0.0.9:0" : address.get();
          muonrt_tcp_options_t tcp = tcp_options(rank, 3, where.c_str());
          tcp.interface_name = "lo";
          tcp.first_port = 20'000;
          tcp.last_port = 60'000;
          tcp.state = &listening;
          tcp.listening = [](void* state, const char* text) {
            static_cast<std::promise<std::string>*>(state)->set_value(text);
            return int32_t{0};
          };
          return muonrt_comm_create_tcp(comm, &tcp);
        }) == "");
  const int port = std::stoi(address.get().substr(address.get().find(':') + 1));
  CHECK((address.get() == muonrt::cat("127.0.0.9:", port) && port >= 20'000 && port <= 60'000));
  const loopback::Folder folder;
  CHECK(gather_errors([&](muonrt_comm_t** comm, int rank) {
          muonrt_folder_options_t options;
          muonrt_folder_options_init(&options);
          options.rank = rank;
          options.size = 3;
          options.path = folder.path().c_str();
          options.run_id = "abi";
          options.secret = kSecret;
          options.secret_bytes = 16;
          return muonrt_comm_create_folder(comm, &options);
        }) == "");
}

TEST_CASE("rendezvous abi: errors name missing and invalid fields", "[unit][rendezvous]") {
  const auto check = [](auto create, const auto& options, const char* text,
                        muonrt_status_t expected = MUONRT_ERROR_INVALID_ARGUMENT) {
    muonrt_comm_t* comm = nullptr;
    CHECK(create(&comm, &options) == expected);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
    CHECK(comm == nullptr);
    CHECK(create(&comm, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK(create(nullptr, &options) == MUONRT_ERROR_INVALID_ARGUMENT);
  };
  muonrt_tcp_options_t tcp;
  muonrt_tcp_options_init(&tcp);
  check(muonrt_comm_create_tcp, tcp, "options.address is NULL");
  tcp.address = "localhost:1234";
  check(muonrt_comm_create_tcp, tcp, "options.secret is NULL");
  tcp.secret = kSecret;
  tcp.secret_bytes = 15;
  check(muonrt_comm_create_tcp, tcp, "secret_bytes is 15, but must be between 16 and 4096");
  tcp.secret_bytes = 16;
  check(muonrt_comm_create_tcp, tcp, "rank -1 of 0");
  tcp.timeout_ms = 0;
  check(muonrt_comm_create_tcp, tcp, "timeout_ms is 0");

  tcp = tcp_options(0, 2, "127.0.0.1:0");
  check(muonrt_comm_create_tcp, tcp, "the other ranks cannot learn which one");
  tcp.listening = [](void*, const char*) { return int32_t{7}; };
  check(muonrt_comm_create_tcp, tcp,
        "options.listening returned 7 for 127.0.0.1:", MUONRT_ERROR_CALLBACK);
  tcp.rank = 1;
  check(muonrt_comm_create_tcp, tcp, "'127.0.0.1:0' on rank 1");

  muonrt_folder_options_t folder;
  muonrt_folder_options_init(&folder);
  check(muonrt_comm_create_folder, folder, "options.path is NULL");
  folder.path = "/tmp";
  check(muonrt_comm_create_folder, folder, "options.run_id is NULL");
  folder.run_id = "run";
  folder.secret_bytes = 8;
  check(muonrt_comm_create_folder, folder, "options.secret is NULL");
  folder.secret = kSecret;
  folder.secret_bytes = 15;
  check(muonrt_comm_create_folder, folder, "secret_bytes is 15, but must be between 16 and 4096");
}
