#include "comm/tcp/rendezvous.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "comm/tcp/handshake.hpp"
#include "comm/tcp/tcp_transport.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;

TcpRendezvous config(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", "a secret of this test", 100};
}

std::unique_ptr<Transport> connect(const TcpRendezvous& m, int64_t timeout_ms = kLong) {
  auto out = make_tcp_transport(m, timeout_ms);
  out->set_timeout_ms(timeout_ms);
  return out;
}

/// Returns the errors of three ranks, of which rank 2 has a changed configuration.
std::vector<std::optional<Error>> with_rank_2(const std::function<void(TcpRendezvous&)>& change,
                                              int64_t timeout_ms) {
  const int port = loopback::free_port();
  return on_ranks(3, [&](int rank) {
    TcpRendezvous m = config(port, rank, 3);
    if (rank == 2) change(m);
    connect(m, timeout_ms);
  });
}

bool is_error(const std::optional<Error>& error, Status status, const std::string& text) {
  return error && error->status() == status && error->message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("rendezvous: a rank with another secret is rejected, and the others continue to wait",
          "[unit][comm][rendezvous]") {
  const auto errors =
      with_rank_2([](TcpRendezvous& m) { m.secret = "another secret altogether"; }, 2000);
  CHECK(is_error(errors[2], Status::kComm, "without an answer, as it does if the secrets differ"));
  CHECK(is_error(errors[0], Status::kTimeout, "rank 2 of 3 did not connect"));
  CHECK(is_error(errors[0], Status::kTimeout, "its secret differs"));
  CHECK(is_error(errors[1], Status::kTimeout, "rendezvous at"));
}

TEST_CASE("rendezvous: if the configurations differ, all ranks get the error",
          "[unit][comm][rendezvous]") {
  const auto size = with_rank_2([](TcpRendezvous& m) { m.size = 4; }, kLong);
  const auto version = with_rank_2([](TcpRendezvous& m) { m.version = 101; }, kLong);
  const auto twice = with_rank_2([](TcpRendezvous& m) { m.rank = 1; }, kLong);
  for (size_t r = 0; r < 3; ++r) {
    CHECK(is_error(size[r], Status::kMismatch, "size is 4 on rank 2, but 3 on rank 0"));
    CHECK(is_error(version[r], Status::kMismatch,
                   "rank 2 runs version 101 of muonrt, but rank 0 runs version 100"));
    CHECK(is_error(twice[r], Status::kMismatch, "two processes have rank 1"));
  }
}

TEST_CASE("rendezvous: after a timeout the missing ranks are named", "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(2, [&](int rank) { connect(config(port, rank, 4), 300); });
  CHECK(is_error(errors[0], Status::kTimeout, "ranks 2, 3 of 4 did not connect"));
  CHECK(errors[1]);
  const auto one_rank = on_ranks(1, [&](int) { connect(config(port, 1, 4), 300); });
  CHECK(is_error(one_rank[0], Status::kTimeout, "found no rank 0"));
}

TEST_CASE("rendezvous: the error says so if only rank 0's machine can connect to its address",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  for (const auto& [host, local] :
       {std::pair{"127.0.1.1", true}, {"127.0.0.1", true}, {"0.0.0.0", false}}) {
    INFO(host);
    TcpRendezvous m = config(port, 0, 2);
    m.address = cat(host, ":", port);
    const auto errors = on_ranks(1, [&](int) { connect(m, 100); });
    CHECK(is_error(errors[0], Status::kTimeout, "rank 1 of 2 did not connect"));
    CHECK(is_error(errors[0], Status::kTimeout, "only this machine can connect to that address") ==
          local);
  }
}

TEST_CASE("rendezvous: unauthenticated connections and port scanners do not disturb it",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  std::atomic<bool> scanned = false;
  std::vector<int> kept;
  std::thread scanner([&] {
    const auto send_text = [&](const std::string& text) {
      const int fd = loopback::connect_to(port);
      [[maybe_unused]] const ssize_t n = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      return fd;
    };
    close(send_text(""));           // connects and disconnects
    kept.push_back(send_text(""));  // sends nothing
    kept.push_back(send_text("GET / HTTP/1.1\r\n\r\n"));
    kept.push_back(send_text(std::string(100000, '\xff')));  // much garbage
    close(send_text("muonrtC1"));                            // only the right magic number
    Claim claim{kClaim, 1, 3, 100, 0, 0, {}, {}};            // a claim without the secret
    kept.push_back(send_text(std::string(reinterpret_cast<const char*>(&claim), sizeof claim)));
    for (int i = 0; i < 300; ++i) kept.push_back(loopback::connect_to(port));  // many connections
    scanned = true;
  });
  const auto errors = on_ranks(3, [&](int rank) {
    while (rank > 0 && !scanned) std::this_thread::yield();
    const auto transport = connect(config(port, rank, 3));
    require_none(check_allgather(*transport, 10, 1));
    require_none(check_allgather(*transport, 10, 2));
  });
  scanner.join();
  for (const int fd : kept) close(fd);
  CHECK(text_of(errors) == "");
}

TEST_CASE("rendezvous: a server that is not muonrt, or does not know the secret, is rejected",
          "[unit][comm][rendezvous]") {
  const auto against = [](const std::string& greeting, bool answer, int64_t timeout_ms = kLong) {
    const std::vector<Socket> listeners =
        listen_at(resolve(loopback::at_port(loopback::free_port())), 4);
    const Socket& listener = listeners[0];
    sockaddr_in at{};
    socklen_t length = sizeof at;
    getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&at), &length);
    std::thread server([&] {
      wait_for(listener.fd(), 1 /* POLLIN */, Deadline::in_ms(kLong));
      const Socket connection([&] { return accept(listener.fd(), nullptr, nullptr); });
      send(connection.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      Claim claim{};
      recv(connection.fd(), &claim, sizeof claim, 0);
      if (!answer) return;
      const Answer accepted = make_answer("guessed", Nonce{}, claim.nonce, Status::kOk, "");
      send(connection.fd(), &accepted, sizeof accepted, MSG_NOSIGNAL);
    });
    const auto errors = on_ranks(1, [&](int) {
      connect_to_rank_0(config(ntohs(at.sin_port), 1, 2), Deadline::in_ms(timeout_ms));
    });
    server.join();
    return errors[0];
  };
  CHECK(is_error(against(std::string(64, 'x'), false), Status::kComm, "not muonrt"));
  const Greeting greeting{kGreeting, Nonce{}};
  const std::string text(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  CHECK(is_error(against(text, true), Status::kComm, "different secrets"));
  // The next attempt gets no answer and ends at the deadline.
  CHECK(is_error(against(text, false, 1000), Status::kTimeout,
                 "1 times without an answer (last: the connection was closed)"));
}

TEST_CASE("rendezvous: secrets that differ only in zeros at their end are different",
          "[unit][comm][rendezvous]") {
  const Claim claim{};
  const std::string secret = "longsecret", zeros(70, '\0');
  for (const std::string& other : {secret + '\0', secret + zeros})
    CHECK(proof_of(secret, {}, claim) != proof_of(other, {}, claim));
  CHECK(proof_of(zeros.substr(0, 63), {}, claim) != proof_of(zeros.substr(0, 64), {}, claim));
}

TEST_CASE("rendezvous: a proof is valid for one claim and one greeting",
          "[unit][comm][rendezvous]") {
  const Nonce greeted = fresh_nonce();
  CHECK(greeted != fresh_nonce());
  Claim claim{kClaim, 1, 3, 100, 0, 0, fresh_nonce(), {}};
  const Digest proof = proof_of("secret", greeted, claim);
  CHECK(proof == proof_of("secret", greeted, claim));
  CHECK(proof != proof_of("Secret", greeted, claim));
  CHECK(proof != proof_of("secret", fresh_nonce(), claim));
  claim.rank = 2;
  CHECK(proof != proof_of("secret", greeted, claim));
}

TEST_CASE("rendezvous: invalid arguments are named", "[unit][comm][rendezvous]") {
  const auto rejected = [](TcpRendezvous m, const std::string& text) {
    const auto errors = on_ranks(1, [&](int) { connect(m, 100); });
    return errors[0] && errors[0]->status() != Status::kInternal &&
           errors[0]->message().find(text) != std::string::npos;
  };
  TcpRendezvous m = config(1, 0, 2);
  m.secret = "only 15 bytes..";
  CHECK(rejected(m, "secret has 15 bytes; pass at least 16"));
  m = config(1, 0, 2);
  m.ports = {5, 3};
  CHECK(rejected(m, "the ports are 5 to 3"));
  m.ports = {1, 65536};
  CHECK(rejected(m, "the ports are 1 to 65536"));
  m = config(1, 2, 2);
  CHECK(rejected(m, "rank 2 of 2"));
  m = config(loopback::free_port(), 0, 2);
  m.interface = "no-such-interface";
  CHECK(rejected(m, "'no-such-interface' does not exist on this machine"));
  m.interface = "";
  m.address = "192.0.2.1:4567";  // of no machine
  CHECK(rejected(m, "cannot listen at 192.0.2.1"));
}

TEST_CASE(
    "rendezvous: waits for a name that cannot be resolved yet, but rejects an invalid address",
    "[unit][comm][rendezvous]") {
  const auto error_at = [](const std::string& address, int64_t timeout_ms) {
    TcpRendezvous m = config(1, 1, 2);
    m.address = address;
    return on_ranks(1, [&](int) { connect(m, timeout_ms); })[0];
  };
  const std::string name(70, 'n');  // longer than a name may be, so that no name server is queried
  CHECK(is_error(error_at(name + ":1234", 100), Status::kTimeout,
                 cat("host '", name, "' cannot be resolved")));
  for (const char* wrong :
       {"256.1.1.1:80", "[]:80", "[rank0]:80", " rank0:80", "tcp://rank0:80", "rank0:", "rank0:0",
        "rank0:70000", "rank0:http", "", "rank0", ":80", "fd00::x:80"})
    CHECK(is_error(error_at(wrong, kLong), Status::kInvalidArgument, "rendezvous: "));
}

TEST_CASE("rendezvous: an interrupt ends the wait of every rank at once",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto begin = Deadline::Clock::now();
  const auto errors = on_ranks(2, [&](int rank) {
    TcpRendezvous m = config(port, rank, 3);
    if (rank == 0) {
      m.check_interrupt = [&] {
        if (seconds_since(begin) > 0.3) throw Error(Status::kAborted, "interrupted");
      };
    }
    connect(m);
  });
  for (const auto& error : errors) CHECK(is_error(error, Status::kAborted, "interrupted"));
  TcpRendezvous alone = config(loopback::free_port(), 1, 2);
  alone.check_interrupt = [] { throw Error(Status::kAborted, "interrupted"); };
  CHECK(is_error(on_ranks(1, [&](int) { connect(alone); })[0], Status::kAborted, "interrupted"));
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("rendezvous: a limit of open files that is too low is named with the number needed",
          "[unit][comm][rendezvous]") {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{200, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto errors = on_ranks(1, [&](int) { connect(config(1, 7, 300)); });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(is_error(errors[0], Status::kComm, "rank 7 of 300 may need 3"));
  CHECK(is_error(errors[0], Status::kComm, "the limit of this process is 200; raise it to"));
}

TEST_CASE("rendezvous: the other ranks detect the end of a rank", "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(3, [&](int rank) {
    const auto transport = connect(config(port, rank, 3));
    if (rank == 2) return;
    int32_t got = 0;
    const ReceiveFrom receive{2, &got, 4};
    transport->exchange({}, {&receive, 1});
  });
  for (const size_t r : {size_t{0}, size_t{1}})
    CHECK(is_error(errors[r], Status::kComm, "rank 2 destroyed its communicator"));
}

TEST_CASE("rendezvous: processes connect, and the end of a killed one is detected",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const pid_t child = fork();
  if (child == 0) {
    try {
      const auto transport = connect(config(port, 1, 2));
      if (check_allgather(*transport, 8, 1) == "") raise(SIGKILL);
    } catch (...) {
    }
    _exit(1);
  }
  const auto errors = on_ranks(1, [&](int) {
    const auto transport = connect(config(port, 0, 2));
    require_none(check_allgather(*transport, 8, 1));
    require_none(check_allgather(*transport, 8, 2));
  });
  int state = 0;
  waitpid(child, &state, 0);
  CHECK((WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL));
  CHECK(
      is_error(errors[0], Status::kComm, "rank 1 destroyed its communicator or its process ended"));
}
