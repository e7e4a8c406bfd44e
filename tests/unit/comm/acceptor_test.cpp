// Rank 0 of a rendezvous over TCP; the test plays the other ranks.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <thread>

#include "comm/tcp/handshake.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

TcpRendezvous config(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", kSecret, 100};
}

/// Receives a value. Returns false if the connection ends before.
template <class T>
bool receive(const Socket& s, T& value) {
  return recv(s.fd(), &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

/// Sends the answer of rank 0, which the test plays, and the addresses of two ranks.
void send_answer(const Socket& socket, const Answer& answer) {
  const std::vector<AddressEntry> entries(2);
  AddressTable table{fresh_nonce(), {}};
  table.proof = proof_of(kSecret, table, entries);
  send_value(socket, answer);
  send_value(socket, table);
  for (const AddressEntry& entry : entries) send_value(socket, entry);
}

/// A connection to rank 0.
struct Visitor {
  Socket socket;
  Greeting greeting{};
  Claim claim{};

  explicit Visitor(int port) {
    const int connected = loopback::connect_to(port);  // waits until rank 0 listens
    socket = Socket([&] { return connected; });
    const timeval timeout{kLong / 1000, 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  }
  bool greeted() { return receive(socket, greeting); }
  void claims(int rank, int size, const Nonce& nonce = fresh_nonce(),
              uint16_t wire = kProtocolVersion) {
    claim = {kClaim, rank, size, 100, wire, 0, nonce, {}};
    claim.proof = proof_of(kSecret, greeting.nonce, claim);
    send_value(socket, claim);
  }
  /// Returns the status and the text of the answer, or "" if the connection ends.
  std::string answer() {
    Answer answer{};
    if (!receive(socket, answer)) return "";
    return cat(status_name(static_cast<Status>(answer.status)), " ", answer.message.data());
  }
};

/// Runs rank 0 of `size` ranks and `function` with its port. Returns the error of rank 0, if any.
std::optional<Error> while_rank_0_waits(int size, const std::function<void(int)>& function) {
  const int port = loopback::free_port();
  std::optional<Error> outcome;
  std::thread rank_0([&] {
    outcome = on_ranks(
        1, [&](int) { accept_all_ranks(config(port, 0, size), Deadline::in_ms(kLong)); })[0];
  });
  function(port);
  rank_0.join();
  return outcome;
}

}  // namespace

TEST_CASE("acceptor: accepts more ranks at once than unauthenticated connections may wait",
          "[unit][comm][rendezvous]") {
  constexpr int kSize = 300;
  int greeted = 0, accepted = 0;
  const auto outcome = while_rank_0_waits(kSize, [&](int port) {
    // All are connected before the first one sends its claim.
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

TEST_CASE("acceptor: a rank whose connection has ended may reconnect at once",
          "[unit][comm][rendezvous]") {
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    for (int i = 0; i < 50; ++i) {
      Visitor again(port);
      if (!again.greeted()) return;
      again.claims(1, 3);
    }
    Visitor one(port), two(port);
    if (one.greeted() && two.greeted()) {
      one.claims(1, 3);
      two.claims(2, 3);
    }
    one.answer();
  });
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("acceptor: a second connection of a process replaces the first one",
          "[unit][comm][rendezvous]") {
  std::string answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor lost(port), again(port), two(port);  // the first one stays open
    const Nonce nonce = fresh_nonce();
    if (lost.greeted()) lost.claims(1, 3, nonce);
    if (again.greeted()) again.claims(1, 3, nonce);
    if (two.greeted()) two.claims(2, 3);
    answers = lost.answer() + again.answer() + two.answer();
  });
  CHECK(answers == "MUONRT_OK MUONRT_OK ");
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("acceptor: a rank that connects after two processes with one rank gets the error",
          "[unit][comm][rendezvous]") {
  std::vector<std::string> answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor first(port);
    if (first.greeted()) first.claims(1, 3);
    for (const int rank : {1, 2}) {
      Visitor visitor(port);
      if (visitor.greeted()) visitor.claims(rank, 3);
      answers.push_back(visitor.answer());
    }
  });
  CHECK((outcome && outcome->status() == Status::kMismatch));
  REQUIRE(answers.size() == 2);
  for (const std::string& answer : answers)
    CHECK(answer.find("two processes have rank 1") != std::string::npos);
}

TEST_CASE("acceptor: if rank 0 may not open enough files, late ranks get the error, too",
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
      accept_all_ranks(config(port, 0, kSize), Deadline::in_ms(kLong));
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

TEST_CASE("acceptor: a rank that does not exist gets an error", "[unit][comm][rendezvous]") {
  for (const int rank : {-5, 0, 3}) {
    std::string answer;
    const auto outcome = while_rank_0_waits(3, [&](int port) {
      Visitor visitor(port);
      if (visitor.greeted()) visitor.claims(rank, 3);
      answer = visitor.answer();
      for (const int other : {1, 2}) {  // rank 0 returns when all have the error
        Visitor late(port);
        if (late.greeted()) late.claims(other, 3);
      }
    });
    CHECK(answer.find(cat("a process has rank ", rank, ", but must have a rank from 1 to 2")) !=
          std::string::npos);
    CHECK((outcome && outcome->status() == Status::kMismatch));
  }
}

TEST_CASE("acceptor: a rank that is rejected without an answer reconnects",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const std::vector<Socket> listeners = listen_at(resolve(loopback::at_port(port)), 4);
  const Socket& listener = listeners[0];
  int claims = 0;
  std::thread rank_0([&] {
    while (claims < 3 && wait_for(listener.fd(), POLLIN, Deadline::in_ms(kLong))) {
      const Socket connection([&] { return accept(listener.fd(), nullptr, nullptr); });
      const Greeting greeting{kGreeting, fresh_nonce()};
      Claim claim{};
      send_value(connection, greeting);
      if (!receive(connection, claim)) continue;
      if (++claims == 3)
        send_answer(connection, make_answer(kSecret, greeting.nonce, claim.nonce, Status::kOk, ""));
    }
  });
  const auto outcome =
      on_ranks(1, [&](int) { connect_to_rank_0(config(port, 1, 2), Deadline::in_ms(kLong)); });
  rank_0.join();
  CHECK(text_of(outcome) == "");
  CHECK(claims == 3);
}

TEST_CASE("acceptor: a rank with an older protocol version is named on all ranks",
          "[unit][comm][rendezvous]") {
  const std::string text =
      "rendezvous: the protocol version is 1 on rank 1, but 3 on rank 0; use the same version of "
      "muonrt on all ranks";
  std::string answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor two(port), old(port);
    if (two.greeted()) two.claims(2, 3);
    if (old.greeted()) old.claims(1, 3, fresh_nonce(), 0);  // as version 1 sends it
    answers = old.answer() + " " + two.answer();
  });
  REQUIRE(outcome);
  CHECK(outcome->status() == Status::kMismatch);
  CHECK(outcome->message() == text);
  CHECK(answers.find("MUONRT_ERROR_MISMATCH " + text) == 0);
  CHECK(answers.rfind(text) > text.size());  // the third rank gets it, too
}

namespace {

/// Returns the error of rank 1 if rank 0, which the test plays, sends the changed answer.
std::optional<Error> error_of_rank_1(const std::function<void(Answer&)>& change, int32_t wire) {
  const int port = loopback::free_port();
  const std::vector<Socket> listeners = listen_at(resolve(loopback::at_port(port)), 4);
  std::thread rank_0([&] {
    if (!wait_for(listeners[0].fd(), POLLIN, Deadline::in_ms(kLong))) return;
    const Socket connection([&] { return accept(listeners[0].fd(), nullptr, nullptr); });
    const Greeting greeting{kGreeting, fresh_nonce()};
    Claim claim{};
    send_value(connection, greeting);
    if (!receive(connection, claim)) return;
    Answer answer = make_answer(kSecret, greeting.nonce, claim.nonce, Status::kOk, "");
    answer.wire = wire;
    answer.proof = proof_of(kSecret, greeting.nonce, claim.nonce, answer);
    change(answer);
    send_answer(connection, answer);
  });
  const auto outcome =
      on_ranks(1, [&](int) { connect_to_rank_0(config(port, 1, 2), Deadline::in_ms(kLong)); });
  rank_0.join();
  return outcome[0];
}

template <class T>
void flip(T& value, size_t bit) {
  reinterpret_cast<unsigned char*>(&value)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
}

}  // namespace

TEST_CASE("acceptor: a rank 0 with an older protocol version is rejected with both versions",
          "[unit][comm][rendezvous]") {
  const auto nothing = [](Answer&) {};
  CHECK(text_of({error_of_rank_1(nothing, kProtocolVersion)}) == "");
  const auto old = error_of_rank_1(nothing, 0);
  REQUIRE(old);
  CHECK(old->status() == Status::kMismatch);
  CHECK(old->message() ==
        "rendezvous: the protocol version is 1 on rank 0, but 3 on rank 1; use the same version of "
        "muonrt on all ranks");
}

TEST_CASE("acceptor: a connection is rejected if a bit changes in transit",
          "[unit][comm][rendezvous]") {
  for (size_t bit = 0; bit < 8 * sizeof(Answer); bit += 131) {
    const auto outcome = error_of_rank_1([&](Answer& a) { flip(a, bit); }, kProtocolVersion);
    INFO("bit " << bit << " of the answer");
    REQUIRE(outcome);
    CHECK(outcome->status() == Status::kComm);
    CHECK(outcome->message().find("rank 0") != std::string::npos);
  }
  int accepted = 0;
  const auto outcome = while_rank_0_waits(2, [&](int port) {
    for (size_t bit = 0; bit < 8 * sizeof(Claim); bit += 23) {
      Visitor visitor(port);
      if (!visitor.greeted()) return;
      visitor.claim = {kClaim, 1, 2, 100, kProtocolVersion, 0, fresh_nonce(), {}};
      visitor.claim.proof = proof_of(kSecret, visitor.greeting.nonce, visitor.claim);
      flip(visitor.claim, bit);
      send_value(visitor.socket, visitor.claim);
      accepted += visitor.answer() == "MUONRT_OK ";
    }
    Visitor good(port);
    if (good.greeted()) good.claims(1, 2);
    accepted += 100 * (good.answer() == "MUONRT_OK ");
  });
  CHECK(text_of({outcome}) == "");
  CHECK(accepted == 100);
}
