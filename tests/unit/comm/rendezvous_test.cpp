#include "comm/tcp/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <thread>

#include "comm/tcp/handshake.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;

constexpr const char* kSecret = "a secret of this test";

Rendezvous config(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), kSecret, 100};
}

void connect(const Rendezvous& m, int64_t timeout_ms = kLong) {
  rendezvous_at_address(m, Deadline::in_ms(timeout_ms));
}

/// Receives a value. Returns false if the connection is closed first.
template <class T>
bool receive(const Socket& s, T& value) {
  return recv(s.fd(), &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

/// A connection to rank 0 that is controlled by the test.
struct Visitor {
  Socket socket;
  Greeting greeting{};
  Claim claim{};

  explicit Visitor(int port) {
    const int connected = loopback::connect_to(port);  // waits until rank 0 is listening
    socket = Socket([&] { return connected; });
    const timeval timeout{kLong / 1000, 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  bool greeted() { return receive(socket, greeting); }
  void claims(int rank, int size, int version = 100, uint16_t wire = kProtocolVersion) {
    claim = {.rank = rank, .size = size, .version = version, .wire = wire, .nonce = fresh_nonce()};
    claim.proof = proof_of(kSecret, greeting.nonce, claim);
    send_value(socket, claim);
  }
  /// Returns the status and the text of rank 0's answer, or "" if rank 0 closes the connection.
  std::string answer() {
    Answer answer{};
    if (!receive(socket, answer)) return "";
    return cat(status_name(static_cast<Status>(answer.status)), " ", answer.message.data());
  }
};

/// Runs rank 0 of `size` ranks, and calls `function` with the port of rank 0. Returns the error of
/// rank 0, if any.
std::optional<Error> while_rank_0_waits(int size, const std::function<void(int)>& function) {
  const int port = loopback::free_port();
  std::optional<Error> outcome;
  std::thread rank_0([&] { outcome = error_of([&] { connect(config(port, 0, size)); }); });
  function(port);
  rank_0.join();
  return outcome;
}

}  // namespace

TEST_CASE("rendezvous: a rank with another secret is rejected, and the others continue to wait",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(3, [&](int rank) {
    Rendezvous m = config(port, rank, 3);
    if (rank == 2) m.secret = "another secret altogether";
    connect(m, 2000);
  });
  CHECK(is_error(errors[2], Status::kComm, "without an answer, as it does if the secrets differ"));
  CHECK(is_error(errors[0], Status::kTimeout, "rank 2 of 3 did not connect"));
  CHECK(is_error(errors[0], Status::kTimeout, "its secret differs"));
  CHECK(is_error(errors[1], Status::kTimeout, "rendezvous at"));
}

TEST_CASE("rendezvous: the error says so if only rank 0's machine can connect to its address",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  for (const auto& [host, local] :
       {std::pair{"127.0.1.1", true}, {"127.0.0.1", true}, {"0.0.0.0", false}}) {
    INFO(host);
    Rendezvous m = config(port, 0, 2);
    m.address = cat(host, ":", port);
    const auto error = error_of([&] { connect(m, 100); });
    CHECK(is_error(error, Status::kTimeout,
                   cat("listens at ", m.address, ": rank 1 of 2 did not connect")));
    CHECK(is_error(error, Status::kTimeout, "only this machine can connect to that address") ==
          local);
  }
}

TEST_CASE("rendezvous: a server that is not muonrt, or does not know the secret, is rejected",
          "[unit][comm][rendezvous]") {
  const auto against = [](const std::string& greeting, bool answer, int64_t timeout_ms = kLong) {
    const std::vector<Socket> listeners = listen_at(resolve("127.0.0.1:0"));
    const Socket& listener = listeners[0];
    std::thread server([&] {
      wait_for(listener.fd(), POLLIN, Deadline::in_ms(kLong));
      const Socket connection([&] { return accept(listener.fd(), nullptr, nullptr); });
      send(connection.fd(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      Claim claim;
      recv(connection.fd(), &claim, sizeof claim, 0);
      if (!answer) return;
      Answer accepted = make_answer(Status::kOk, "");
      accepted.proof = proof_of("guessed", Nonce{}, claim.nonce, accepted);
      send(connection.fd(), &accepted, sizeof accepted, MSG_NOSIGNAL);
    });
    const auto error =
        error_of([&] { connect(config(address_of(listener).port(), 1, 2), timeout_ms); });
    server.join();
    return error;
  };
  CHECK(is_error(against(std::string(64, 'x'), false), Status::kComm, "not muonrt"));
  const std::string greeting(bytes_of(Greeting()));
  CHECK(is_error(against(greeting, true), Status::kComm, "different secrets"));
  // The next attempt gets no answer, so the rank returns after its timeout.
  CHECK(is_error(against(greeting, false, 1000), Status::kTimeout,
                 "1 times without an answer (last: the connection was closed)"));
}

TEST_CASE("rendezvous: a proof is valid for one secret, one claim and one greeting",
          "[unit][comm][rendezvous]") {
  const Nonce greeted = fresh_nonce();
  CHECK(greeted != fresh_nonce());
  Claim claim{.rank = 1, .size = 3, .version = 100, .nonce = fresh_nonce()};
  const Digest proof = proof_of("secret", greeted, claim);
  CHECK(proof == proof_of("secret", greeted, claim));
  // HMAC pads keys with zeros, so keys that differ only in final zeros could give equal proofs.
  const std::string zeros(70, '\0');
  for (const std::string& other :
       {std::string("Secret"), "secret" + zeros.substr(0, 1), "secret" + zeros})
    CHECK(proof != proof_of(other, greeted, claim));
  CHECK(proof_of(zeros.substr(0, 63), {}, claim) != proof_of(zeros.substr(0, 64), {}, claim));
  CHECK(proof != proof_of("secret", fresh_nonce(), claim));
  claim.rank = 2;
  CHECK(proof != proof_of("secret", greeted, claim));
}

TEST_CASE("rendezvous: invalid arguments are named", "[unit][comm][rendezvous]") {
  const auto error_with = [](const std::function<void(Rendezvous&)>& change) {
    Rendezvous m = config(loopback::free_port(), 0, 2);
    change(m);
    const auto error = error_of([&] { connect(m, 100); });
    return error ? error->message() : "";
  };
  const auto check = [&](const char* text, const std::function<void(Rendezvous&)>& change) {
    CHECK_THAT(error_with(change), Catch::Contains(text));
  };
  check("the ports are 5 to 3", [](Rendezvous& m) { m.ports = {5, 3}; });
  check("the ports are 1 to 65536", [](Rendezvous& m) { m.ports = {1, 65536}; });
  check("rank 2 of 2", [](Rendezvous& m) { m.rank = 2; });
  check("'nowhere0' does not exist", [](Rendezvous& m) { m.interface = "nowhere0"; });
  check("cannot listen at 192.0.2.1", [](Rendezvous& m) { m.address = "192.0.2.1:4567"; });
}

TEST_CASE(
    "rendezvous: waits for a name that cannot be resolved yet, but rejects an invalid address",
    "[unit][comm][rendezvous]") {
  const auto error_at = [](const std::string& address, int64_t timeout_ms) {
    Rendezvous m = config(1, 1, 2);
    m.address = address;
    return error_of([&] { connect(m, timeout_ms); });
  };
  CHECK(is_error(error_at(loopback::at_port(loopback::free_port()), 100), Status::kTimeout,
                 "found no rank 0"));
  const std::string name(70, 'n');  // longer than names can be, so no name server is queried
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
    Rendezvous m = config(port, rank, 3);
    if (rank == 0) {
      m.check_interrupt = [&] {
        if (seconds_since(begin) > 0.3) throw Error(Status::kAborted, "interrupted");
      };
    }
    connect(m);
  });
  for (const auto& error : errors) CHECK(is_error(error, Status::kAborted, "interrupted"));
  Rendezvous alone = config(loopback::free_port(), 1, 2);
  alone.check_interrupt = [] { throw Error(Status::kAborted, "interrupted"); };
  CHECK(is_error(error_of([&] { connect(alone); }), Status::kAborted, "interrupted"));
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("rendezvous: a limit of open files that is too low is named with the number needed",
          "[unit][comm][rendezvous]") {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{200, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto error = error_of([&] { connect(config(1, 7, 300)); });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(is_error(error, Status::kComm, "rank 7 of 300 may need 3"));
  CHECK(is_error(error, Status::kComm, "the limit of this process is 200; raise it to"));
}

TEST_CASE("rendezvous: accepts more ranks at once than unauthenticated connections may wait",
          "[unit][comm][rendezvous]") {
  constexpr int kSize = 300;
  int greeted = 0, accepted = 0;
  const auto outcome = while_rank_0_waits(kSize, [&](int port) {
    // All ranks connect before the first rank sends its claim.
    std::vector<Visitor> ranks;
    for (int r = 1; r < kSize; ++r) ranks.emplace_back(port);
    for (Visitor& v : ranks) greeted += v.greeted();
    for (int r = 1; r < kSize; ++r) ranks[static_cast<size_t>(r - 1)].claims(r, kSize);
    for (Visitor& v : ranks) accepted += v.answer() == "MUONRT_OK ";
    if (accepted < kSize - 1) Visitor(port).claims(1, kSize + 1);  // ends the rendezvous
  });
  CHECK(greeted == kSize - 1);
  CHECK(accepted == kSize - 1);
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("rendezvous: a rank that does not fit ends it on all ranks, also on later ones",
          "[unit][comm][rendezvous]") {
  struct Row {
    int rank, size, version;
    uint16_t wire;
    std::string text;
  };
  const auto no_rank = [](int rank) {
    return cat("a process has rank ", rank, ", but must have a rank from 1 to 3");
  };
  for (const Row& row :
       {Row{-5, 4, 100, kProtocolVersion, no_rank(-5)},
        {0, 4, 100, kProtocolVersion, no_rank(0)},
        {4, 4, 100, kProtocolVersion, no_rank(4)},
        {1, 4, 100, kProtocolVersion, "two processes have rank 1"},
        {2, 5, 100, kProtocolVersion, "size is 5 on rank 2, but 4 on rank 0"},
        {2, 4, 101, kProtocolVersion,
         "rank 2 runs version 101 of muonrt, but rank 0 runs version 100"},
        {2, 4, 100, 1, cat("the protocol version is 1 on rank 2, but ", kProtocolVersion)}}) {
    CAPTURE(row.text);
    std::vector<std::string> answers;
    const auto outcome = while_rank_0_waits(4, [&](int port) {
      Visitor first(port), misfit(port);
      if (first.greeted()) first.claims(1, 4);
      if (misfit.greeted()) misfit.claims(row.rank, row.size, row.version, row.wire);
      answers = {first.answer(), misfit.answer()};
      for (const int rank : {2, 3}) {
        if (rank == row.rank) continue;
        Visitor late(port);
        if (late.greeted()) late.claims(rank, 4);
        answers.push_back(late.answer());
      }
    });
    for (const std::string& answer : answers) {
      CHECK_THAT(answer, Catch::StartsWith("MUONRT_ERROR_MISMATCH "));
      CHECK_THAT(answer, Catch::Contains(row.text));
    }
    CHECK(is_error(outcome, Status::kMismatch, row.text));
  }
}

TEST_CASE("rendezvous: if rank 0 may not open enough files, late ranks get the error, too",
          "[unit][comm][rendezvous]") {
  constexpr int kSize = 30;
  const int port = loopback::free_port();
  const pid_t child = fork();  // the limit applies to a whole process
  REQUIRE(child >= 0);
  if (child == 0) {
    const Socket next([&] { return open("/dev/null", O_RDONLY); });
    const rlimit few{static_cast<rlim_t>(next.fd() + 12), static_cast<rlim_t>(next.fd() + 12)};
    setrlimit(RLIMIT_NOFILE, &few);
    try {
      // Skips the check of the limit on open files.
      accept_all_ranks(config(port, 0, kSize), listen_at(resolve(loopback::at_port(port))),
                       Deadline::in_ms(kLong));
    } catch (const Error& e) {
      _exit(e.status() == Status::kComm ? 0 : 1);
    } catch (...) {
    }
    _exit(1);
  }
  std::vector<Visitor> ranks;
  int answered = 0;
  for (int r = 1; r < kSize; ++r) {
    ranks.emplace_back(port);
    if (ranks.back().greeted()) ranks.back().claims(r, kSize);
  }
  for (Visitor& v : ranks)
    answered += v.answer().find("raise the limit of open files") != std::string::npos;
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(answered == kSize - 1);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
