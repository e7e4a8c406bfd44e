#include "comm/tcp/rendezvous.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
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

std::optional<Error> connect_error(const Rendezvous& m, int64_t timeout_ms = kLong) {
  return error_of([&] { rendezvous_at_address(m, Deadline::in_ms(timeout_ms)); });
}

/// A connection to rank 0 that is controlled by the test.
struct Visitor : Dial {
  explicit Visitor(int port) {
    const Deadline deadline = Deadline::in_ms(kLong);
    while (state == State::kUnreachable && !deadline.passed()) {  // rank 0 may not listen yet
      Dial::operator=(Dial(resolve(loopback::at_port(port))[0], {}));
      wait_while(State::kConnecting);
    }
  }
  void wait_while(State what) {
    while (state == what && wait_for(socket.fd(), events(), Deadline::in_ms(kLong)))
      advance(kSecret);
  }
  bool greeted() {
    wait_while(State::kConnected);
    return state == State::kGreeted;
  }
  void claims(int rank, int size, int version = 100, uint16_t wire = kProtocolVersion) {
    if (greeted())
      send_claim(
          kSecret,
          {.rank = rank, .size = size, .version = version, .wire = wire, .nonce = fresh_nonce()});
  }
  /// Returns the status and the text of rank 0's answer, or "" if rank 0 closes the connection.
  std::string text() {
    wait_while(State::kClaimed);
    if (state != State::kAnswered) return "";
    return cat(status_name(static_cast<Status>(answer.status)), " ", answer.message.data());
  }
};

/// Runs rank 0 of `size` ranks, and calls `function` with the port of rank 0. Returns the error of
/// rank 0, if any.
std::optional<Error> while_rank_0_waits(int size, const std::function<void(int)>& function) {
  const int port = loopback::free_port();
  std::optional<Error> outcome;
  std::thread rank_0([&] { outcome = connect_error(config(port, 0, size)); });
  function(port);
  rank_0.join();
  return outcome;
}

std::string texts(const Addresses& of) {
  std::string out;
  for (const SocketAddress& one : of) out += one.text() + ' ';
  return out;
}

Addresses list(const std::vector<std::string>& of) {
  Addresses out;
  for (const std::string& text : of) out.push_back(resolve(text)[0]);
  return out;
}

}  // namespace

TEST_CASE("rendezvous: a rank with another secret is rejected, and the others continue to wait",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto errors = on_ranks(3, [&](int rank) {
    Rendezvous m = config(port, rank, 3);
    if (rank == 2) m.secret = "another secret altogether";
    rendezvous_at_address(m, Deadline::in_ms(2000));
  });
  CHECK(is_error(errors[2], Status::kComm, "without an answer, as it does if the secrets differ"));
  CHECK(is_error(errors[0], Status::kTimeout, "rank 2 of 3 did not connect"));
  CHECK(is_error(errors[0], Status::kTimeout, "its secret differs"));
  CHECK(is_error(errors[1], Status::kTimeout, "rendezvous at"));
}

TEST_CASE("rendezvous: the error says so if only rank 0's machine can connect to its address",
          "[unit][comm][rendezvous]") {
  for (const auto& [host, local] :
       {std::pair{"127.0.1.1", true}, {"127.0.0.1", true}, {"0.0.0.0", false}}) {
    INFO(host);
    Rendezvous m = config(0, 0, 2);
    m.address = cat(host, ":", loopback::free_port());
    const auto error = connect_error(m, 100);
    CHECK(is_error(error, Status::kTimeout,
                   cat("listens at ", m.address, ": rank 1 of 2 did not connect")));
    CHECK(is_error(error, Status::kTimeout, "only this machine can connect to that address") ==
          local);
  }
}

TEST_CASE("rendezvous: a server that is not muonrt, or does not know the secret, is rejected",
          "[unit][comm][rendezvous]") {
  const auto against = [](const std::string& greeting, bool answer, int64_t timeout_ms = kLong) {
    const Socket listener = std::move(listen_at(resolve("127.0.0.1:0"))[0]);
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
    const auto error = connect_error(config(address_of(listener).port(), 1, 2), timeout_ms);
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

TEST_CASE("rendezvous: invalid arguments and a limit of open files that is too low are named",
          "[unit][comm][rendezvous]") {
  const auto check = [](const char* text, auto Rendezvous::*field, const auto& value) {
    Rendezvous m = config(loopback::free_port(), 0, 2);
    m.*field = value;
    const auto error = connect_error(m, 100);
    CHECK_THAT(error ? error->message() : "", Catch::Contains(text));
  };
  check("the ports are 5 to 3", &Rendezvous::ports, PortRange{5, 3});
  check("the ports are 1 to 65536", &Rendezvous::ports, PortRange{1, 65536});
  check("rank 2 of 2", &Rendezvous::rank, 2);
  check("'nowhere0' does not exist on this machine", &Rendezvous::interface, "nowhere0");
  check("cannot listen at 192.0.2.1", &Rendezvous::address, "192.0.2.1:4567");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{200, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto error = connect_error(config(1, 7, 300));
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(is_error(error, Status::kComm, "rank 7 of 300 may need 3"));
  CHECK(is_error(error, Status::kComm, "the limit of this process is 200; raise it to"));
}

TEST_CASE(
    "rendezvous: waits for a name that cannot be resolved yet, but rejects an invalid address",
    "[unit][comm][rendezvous]") {
  const auto error_at = [](const std::string& address, int64_t timeout_ms) {
    Rendezvous m = config(1, 1, 2);
    m.address = address;
    return connect_error(m, timeout_ms);
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
  const auto check = [&] {
    if (seconds_since(begin) > 0.3) throw Error(Status::kAborted, "interrupted");
  };
  auto errors = on_ranks(2, [&](int rank) {
    Rendezvous m = config(port, rank, 3);
    if (rank == 0) m.check_interrupt = check;
    rendezvous_at_address(m, Deadline::in_ms(kLong));
  });
  Rendezvous alone = config(loopback::free_port(), 1, 2);
  alone.check_interrupt = check;
  errors.push_back(connect_error(alone));
  for (const auto& error : errors) CHECK(is_error(error, Status::kAborted, "interrupted"));
  CHECK(seconds_since(begin) < 5);
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
    for (Visitor& v : ranks) accepted += v.text() == "MUONRT_OK ";
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
    std::string text;
    uint16_t wire = kProtocolVersion;
  };
  const auto no_rank = [](int rank) {
    return cat("a process has rank ", rank, ", but must have a rank from 1 to 3");
  };
  for (const Row& row :
       {Row{-5, 4, 100, no_rank(-5)}, Row{0, 4, 100, no_rank(0)}, Row{4, 4, 100, no_rank(4)},
        Row{1, 4, 100, "two processes have rank 1"},
        Row{2, 5, 100, "size is 5 on rank 2, but 4 on rank 0"},
        Row{2, 4, 101, "rank 2 runs version 101 of muonrt, but rank 0 runs version 100"},
        Row{2, 4, 100, cat("the protocol version is 1 on rank 2, but ", kProtocolVersion), 1}}) {
    CAPTURE(row.text);
    std::vector<std::string> answers;
    const auto outcome = while_rank_0_waits(4, [&](int port) {
      Visitor first(port), misfit(port);
      first.claims(1, 4);
      misfit.claims(row.rank, row.size, row.version, row.wire);
      answers = {first.text(), misfit.text()};
      for (const int rank : {2, 3}) {
        if (rank == row.rank) continue;
        Visitor late(port);
        late.claims(rank, 4);
        answers.push_back(late.text());
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
  int answered = 0, status = 0;
  for (int r = 1; r < kSize; ++r) ranks.emplace_back(port).claims(r, kSize);
  for (Visitor& v : ranks)
    answered += v.text().find("raise the limit of open files") != std::string::npos;
  waitpid(child, &status, 0);
  CHECK(answered == kSize - 1);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("addresses: an interface has the addresses at which it listens and that it can reach",
          "[unit][comm][rendezvous]") {
  // Every address of the loopback network belongs to the interface lo.
  CHECK(texts(addresses_on("lo", list({"127.0.0.9:80"}))) == "127.0.0.9:80 ");
  CHECK(texts(addresses_on("lo", list({"198.51.100.7:80", "127.0.0.9:80", "127.0.0.8:80"}))) ==
        "127.0.0.9:80 127.0.0.8:80 ");
  // Tests a name that resolves to addresses of both families, and an interface that has an address
  // of only one family.
  CHECK(texts(addresses_on("127.0.0.1", list({"[::1]:80", "127.0.0.1:80"}))) == "127.0.0.1:80 ");
  // A translated address (NAT) does not belong to any interface of the machine.
  CHECK(texts(addresses_on("127.0.0.1", list({"198.51.100.7:80"}))) == "127.0.0.1:80 ");
  const auto routes = routes_from("127.0.0.1", list({"[::1]:80", "127.0.0.9:80"}));
  REQUIRE(routes.size() == 1);
  CHECK(texts({routes[0].from, routes[0].to}) == "127.0.0.1:0 127.0.0.9:80 ");
  CHECK_THROWS_WITH(addresses_on("127.0.0.1", list({"[::1]:80"})),
                    Catch::Contains("has no IPv6 address"));
}

TEST_CASE(
    "addresses: rank 0 listens at all addresses of its machine, on the first port that is free",
    "[unit][comm][rendezvous]") {
  const auto listeners = listen_at(list({"127.0.0.1:0", "198.51.100.7:0", "127.0.0.2:0"}));
  const std::string port = cat(':', address_of(listeners.at(0)).port());
  CHECK((port != ":0" && listeners.size() == 2));
  CHECK(texts({address_of(listeners[0]), address_of(listeners[1])}) ==
        cat("127.0.0.1", port, " 127.0.0.2", port, " "));
  for (const std::string host : {"198.51.100.7", "127.0.0.1"})
    CHECK_THROWS_WITH(listen_at(list({host + port})), Catch::Contains("cannot listen at " + host));
  CHECK(
      (port_of("127.0.0.1" + port) == address_of(listeners[0]).port() && port_of("[::1]:0") == 0));
  const auto at = list({"127.0.0.1:0"});
  const int32_t first = loopback::free_port();
  std::vector<Socket> taken;
  for (int32_t least = first; least < first + 3; ++least) {
    try {
      taken.push_back(std::move(listen_at(at, {first, first + 2})[0]));
    } catch (const Error&) {  // another program uses a port of the range
      break;
    }
    const int32_t got = address_of(taken.back()).port();
    CHECK((got >= least && got <= first + 2));
  }
  CHECK_THROWS_WITH(listen_at(at, {first, first + 2}),
                    Catch::Contains(cat("no port from ", first, " to ", first + 2, " is free")));
}

TEST_CASE("socket: a connection to itself is detected, and frees its port at once",
          "[unit][comm][rendezvous]") {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    // The system can connect a socket to itself if a program connects to a port in the ephemeral
    // range on which no process is listening.
    const int port = loopback::free_port();
    const SocketAddress here = resolve(loopback::at_port(port))[0];
    Dial own(resolve(cat(host, ':', port))[0], here);
    REQUIRE(wait_for(own.socket.fd(), POLLOUT, Deadline::in_ms(10'000)));
    REQUIRE(address_of(own.socket) == peer_of(own.socket));
    own.advance("");
    CHECK((own.state == Dial::State::kUnreachable && own.why == "no process listens"));
    // This socket does not set SO_REUSEADDR, so it can bind the port only if the port is not in
    // TIME_WAIT.
    const Socket next([&] { return socket(AF_INET, SOCK_STREAM, 0); });
    CHECK(bind(next.fd(), here.get(), here.length()) == 0);
  }
}
