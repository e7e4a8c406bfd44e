#include "comm/tcp/rendezvous.hpp"

#include <sys/wait.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "comm/tcp/handshake.hpp"
#include "comm/tcp/mailbox_transport.hpp"
#include "comm/tcp/tcp_mailbox.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;

TcpRendezvous meeting(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", "a secret of this test", 100};
}

std::unique_ptr<Transport> meet(const TcpRendezvous& m, int64_t timeout_ms = kLong) {
  auto out = make_mailbox_transport(make_tcp_mailbox(m, timeout_ms));
  out->set_timeout_ms(timeout_ms);
  return out;
}

/// What becomes of three ranks of which rank 2 is changed.
std::vector<std::optional<Error>> with_rank_2(const std::function<void(TcpRendezvous&)>& change,
                                              int64_t timeout_ms) {
  const int port = loopback::free_port();
  return on_ranks(3, [&](int rank) {
    TcpRendezvous m = meeting(port, rank, 3);
    if (rank == 2) change(m);
    meet(m, timeout_ms);
  });
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("rendezvous: another secret is told apart, and the others go on waiting",
          "[unit][comm][rendezvous]") {
  const auto errors =
      with_rank_2([](TcpRendezvous& m) { m.secret = "another secret altogether"; }, 1000);
  CHECK(says(errors[2], Status::kComm, "different secrets"));
  CHECK(says(errors[0], Status::kTimeout, "rank 2 of 3 did not come"));
  CHECK(says(errors[0], Status::kTimeout, "its secret is another one"));
  CHECK(says(errors[1], Status::kTimeout, "rendezvous at"));
}

TEST_CASE("rendezvous: what the ranks do not agree on is said to all of them",
          "[unit][comm][rendezvous]") {
  const auto size = with_rank_2([](TcpRendezvous& m) { m.size = 4; }, kLong);
  const auto version = with_rank_2([](TcpRendezvous& m) { m.version = 101; }, kLong);
  const auto twice = with_rank_2([](TcpRendezvous& m) { m.rank = 1; }, kLong);
  for (size_t r = 0; r < 3; ++r) {
    CHECK(says(size[r], Status::kMismatch, "rank 2 believes in 4 ranks, rank 0 in 3"));
    CHECK(says(version[r], Status::kMismatch, "rank 2 runs version 101 of muonrt, rank 0 100"));
    CHECK(says(twice[r], Status::kMismatch, "two processes say they are rank 1"));
  }
}

TEST_CASE("rendezvous: ranks that are missing are named when the time is over",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(2, [&](int rank) { meet(meeting(port, rank, 4), 300); });
  CHECK(says(errors[0], Status::kTimeout, "ranks 2, 3 of 4 did not come"));
  CHECK(errors[1]);
  const auto alone = on_ranks(1, [&](int) { meet(meeting(port, 1, 4), 300); });
  CHECK(says(alone[0], Status::kTimeout, "found no rank 0"));
}

TEST_CASE("rendezvous: rank 0 that only its own machine reaches says so",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  for (const auto& [host, local] :
       {std::pair{"127.0.1.1", true}, {"127.0.0.1", true}, {"0.0.0.0", false}}) {
    INFO(host);
    TcpRendezvous m = meeting(port, 0, 2);
    m.address = cat(host, ":", port);
    const auto errors = on_ranks(1, [&](int) { meet(m, 100); });
    CHECK(says(errors[0], Status::kTimeout, "rank 1 of 2 did not come"));
    CHECK(says(errors[0], Status::kTimeout, "only this machine reaches that") == local);
  }
}

TEST_CASE("rendezvous: strangers and port scanners do not disturb it", "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  std::atomic<bool> scanned = false;
  std::vector<int> kept;
  std::thread strangers([&] {
    const auto say = [&](const std::string& text) {
      const int fd = loopback::connect_to(port);
      [[maybe_unused]] const ssize_t n = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      return fd;
    };
    close(say(""));           // comes and goes
    kept.push_back(say(""));  // says nothing
    kept.push_back(say("GET / HTTP/1.1\r\n\r\n"));
    kept.push_back(say(std::string(100000, '\xff')));  // no end of garbage
    close(say("muonrtC1"));                            // the right word, and no more
    Claim claim{kClaim, 1, 3, 100, 0, {}, {}};         // a claim without the secret
    kept.push_back(say(std::string(reinterpret_cast<const char*>(&claim), sizeof claim)));
    for (int i = 0; i < 300; ++i) kept.push_back(loopback::connect_to(port));  // very many
    scanned = true;
  });
  const auto errors = on_ranks(3, [&](int rank) {
    while (rank > 0 && !scanned) std::this_thread::yield();
    const auto transport = meet(meeting(port, rank, 3));
    require_none(check_allgather(*transport, 10, 1));
    require_none(check_allgather(*transport, 10, 2));
  });
  strangers.join();
  for (const int fd : kept) close(fd);
  CHECK(text_of(errors) == "");
}

TEST_CASE("rendezvous: a server that is not muonrt, or does not know the secret, is refused",
          "[unit][comm][rendezvous]") {
  const auto against = [](const std::string& greeting, bool answer, int64_t timeout_ms = kLong) {
    const std::vector<Socket> listeners =
        listen_at(resolve(loopback::at_port(loopback::free_port())), 4);
    const Socket& door = listeners[0];
    sockaddr_in at{};
    socklen_t length = sizeof at;
    getsockname(door.fd(), reinterpret_cast<sockaddr*>(&at), &length);
    std::thread server([&] {
      wait_for(door.fd(), 1 /* POLLIN */, Deadline::in_ms(kLong));
      const Socket line([&] { return accept(door.fd(), nullptr, nullptr); });
      send(line.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      Claim claim{};
      recv(line.fd(), &claim, sizeof claim, 0);
      if (!answer) return;
      const Answer welcome = make_answer("guessed", Nonce{}, claim.nonce, Status::kOk, "");
      send(line.fd(), &welcome, sizeof welcome, MSG_NOSIGNAL);
    });
    const auto errors = on_ranks(1, [&](int) {
      connect_to_rank_0(meeting(ntohs(at.sin_port), 1, 2), Deadline::in_ms(timeout_ms));
    });
    server.join();
    return errors[0];
  };
  CHECK(says(against(std::string(64, 'x'), false), Status::kComm, "not muonrt"));
  const Greeting greeting{kGreeting, Nonce{}};
  const std::string words(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  CHECK(says(against(words, true), Status::kComm, "different secrets"));
  // The next try finds nobody who answers, and is cut short by the deadline.
  CHECK(says(against(words, false, 1000), Status::kTimeout,
             "1 times without an answer (last: the connection was closed)"));
}

TEST_CASE("rendezvous: secrets differ that differ in zeros at their end alone",
          "[unit][comm][rendezvous]") {
  const Claim claim{};
  const std::string secret = "longsecret", zeros(70, '\0');
  for (const std::string& other : {secret + '\0', secret + zeros})
    CHECK(proof_of(secret, {}, claim) != proof_of(other, {}, claim));
  CHECK(proof_of(zeros.substr(0, 63), {}, claim) != proof_of(zeros.substr(0, 64), {}, claim));
}

TEST_CASE("rendezvous: a proof is for one claim and one greeting alone",
          "[unit][comm][rendezvous]") {
  const Nonce greeted = fresh_nonce();
  CHECK(greeted != fresh_nonce());
  Claim claim{kClaim, 1, 3, 100, 0, fresh_nonce(), {}};
  const Digest proof = proof_of("secret", greeted, claim);
  CHECK(proof == proof_of("secret", greeted, claim));
  CHECK(proof != proof_of("Secret", greeted, claim));
  CHECK(proof != proof_of("secret", fresh_nonce(), claim));
  claim.rank = 2;
  CHECK(proof != proof_of("secret", greeted, claim));
}

TEST_CASE("rendezvous: bad arguments are refused by name", "[unit][comm][rendezvous]") {
  const auto refused = [](TcpRendezvous m, const std::string& words) {
    const auto errors = on_ranks(1, [&](int) { meet(m, 100); });
    return errors[0] && errors[0]->status() != Status::kInternal &&
           errors[0]->message().find(words) != std::string::npos;
  };
  TcpRendezvous m = meeting(1, 0, 2);
  m.secret = "short";
  CHECK(refused(m, "secret has 5 bytes"));
  m = meeting(1, 2, 2);
  CHECK(refused(m, "rank 2 of 2"));
  m = meeting(loopback::free_port(), 0, 2);
  m.interface = "no-such-interface";
  CHECK(refused(m, "'no-such-interface' is none of this machine's"));
  m.interface = "";
  m.address = "192.0.2.1:4567";  // of nobody
  CHECK(refused(m, "cannot listen at 192.0.2.1"));
}

TEST_CASE("rendezvous: a name that is not known yet is waited for, and a wrong address is not",
          "[unit][comm][rendezvous]") {
  const auto called = [](const std::string& address, int64_t timeout_ms) {
    TcpRendezvous m = meeting(1, 1, 2);
    m.address = address;
    return on_ranks(1, [&](int) { meet(m, timeout_ms); })[0];
  };
  const std::string name(70, 'n');  // longer than a name can be: no name server is asked
  CHECK(says(called(name + ":1234", 100), Status::kTimeout, cat("host '", name, "' is not known")));
  for (const char* wrong :
       {"256.1.1.1:80", "[]:80", "[rank0]:80", " rank0:80", "tcp://rank0:80", "rank0:", "rank0:0",
        "rank0:70000", "rank0:http", "", "rank0", ":80", "fd00::x:80"})
    CHECK(says(called(wrong, kLong), Status::kInvalidArgument, "rendezvous: "));
}

TEST_CASE("rendezvous: the end of a rank reaches the others", "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(3, [&](int rank) {
    const auto transport = meet(meeting(port, rank, 3));
    if (rank == 2) return;
    int32_t got = 0;
    const ReceiveFrom receive{2, &got, 4};
    transport->exchange({}, {&receive, 1});
  });
  for (const size_t r : {size_t{0}, size_t{1}})
    CHECK(says(errors[r], Status::kComm, "rank 2 has left"));
}

TEST_CASE("rendezvous: processes meet, and a killed one is noticed", "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const pid_t child = fork();
  if (child == 0) {
    try {
      const auto transport = meet(meeting(port, 1, 2));
      if (check_allgather(*transport, 8, 1) == "") raise(SIGKILL);
    } catch (...) {
    }
    _exit(1);
  }
  const auto errors = on_ranks(1, [&](int) {
    const auto transport = meet(meeting(port, 0, 2));
    require_none(check_allgather(*transport, 8, 1));
    require_none(check_allgather(*transport, 8, 2));
  });
  int state = 0;
  waitpid(child, &state, 0);
  CHECK((WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL));
  CHECK(says(errors[0], Status::kComm, "rank 1 has left or its process has ended"));
}
