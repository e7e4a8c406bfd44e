// Rank 0's side of a meeting over TCP, against ranks that the test itself speaks for.
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

TcpRendezvous meeting(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", kSecret, 100};
}

/// All of a value, or false when the connection ends before.
template <class T>
bool take(const Socket& s, T& value) {
  return recv(s.fd(), &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

/// A connection to rank 0 that has been greeted.
struct Visitor {
  Socket socket;
  Greeting greeting{};
  Claim claim{};

  explicit Visitor(int port) {
    const int connected = loopback::connect_to(port);  // waits until rank 0 listens
    socket = Socket([&] { return connected; });
    const timeval patience{kLong / 1000, 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  bool greeted() { return take(socket, greeting); }
  void says(int rank, int size, const Nonce& nonce = fresh_nonce(),
            int32_t wire = kProtocolVersion) {
    claim = {kClaim, rank, size, 100, wire, nonce, {}};
    claim.proof = proof_of(kSecret, greeting.nonce, claim);
    send_value(socket, claim);
  }
  /// Its status and words, or "" when the connection ends.
  std::string answer() {
    Answer answer{};
    if (!take(socket, answer)) return "";
    return cat(status_name(static_cast<Status>(answer.status)), " ", answer.message.data());
  }
};

/// Rank 0 of `size` ranks, while the test does `work` with its port; what became of rank 0.
std::optional<Error> while_rank_0_waits(int size, const std::function<void(int)>& work) {
  const int port = loopback::free_port();
  std::optional<Error> outcome;
  std::thread rank_0([&] {
    outcome = on_ranks(
        1, [&](int) { accept_all_ranks(meeting(port, 0, size), Deadline::in_ms(kLong)); })[0];
  });
  work(port);
  rank_0.join();
  return outcome;
}

}  // namespace

TEST_CASE("reception: more ranks than strangers may wait come at once, and all are let in",
          "[unit][comm][rendezvous]") {
  constexpr int kSize = 300;
  int greeted = 0, welcome = 0;
  const auto outcome = while_rank_0_waits(kSize, [&](int port) {
    // All have come before the first one says who it is.
    std::vector<Visitor> ranks;
    for (int r = 1; r < kSize; ++r) ranks.emplace_back(port);
    for (Visitor& v : ranks) greeted += v.greeted();
    for (int r = 1; r < kSize; ++r) ranks[static_cast<size_t>(r - 1)].says(r, kSize);
    for (Visitor& v : ranks) welcome += v.answer() == "MUONRT_OK ";
    if (welcome < kSize - 1) Visitor(port).says(1, kSize + 1);  // ends it
  });
  CHECK(greeted == kSize - 1);
  CHECK(welcome == kSize - 1);
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("reception: a rank whose connection has ended may come again at once",
          "[unit][comm][rendezvous]") {
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    for (int i = 0; i < 50; ++i) {
      Visitor again(port);
      if (!again.greeted()) return;
      again.says(1, 3);
    }
    Visitor one(port), two(port);
    if (one.greeted() && two.greeted()) {
      one.says(1, 3);
      two.says(2, 3);
    }
    one.answer();
  });
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("reception: a process that comes again takes the place of its first connection",
          "[unit][comm][rendezvous]") {
  std::string answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor lost(port), again(port), two(port);  // rank 0's end of the first stays whole
    const Nonce nonce = fresh_nonce();
    if (lost.greeted()) lost.says(1, 3, nonce);
    if (again.greeted()) again.says(1, 3, nonce);
    if (two.greeted()) two.says(2, 3);
    answers = lost.answer() + again.answer() + two.answer();
  });
  CHECK(answers == "MUONRT_OK MUONRT_OK ");
  CHECK(text_of({outcome}) == "");
}

TEST_CASE("reception: a rank that comes after two of one number hears of them",
          "[unit][comm][rendezvous]") {
  std::vector<std::string> answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor first(port);
    if (first.greeted()) first.says(1, 3);
    for (const int rank : {1, 2}) {
      Visitor visitor(port);
      if (visitor.greeted()) visitor.says(rank, 3);
      answers.push_back(visitor.answer());
    }
  });
  CHECK((outcome && outcome->status() == Status::kMismatch));
  REQUIRE(answers.size() == 2);
  for (const std::string& answer : answers)
    CHECK(answer.find("two processes say they are rank 1") != std::string::npos);
}

TEST_CASE("reception: where rank 0 may not open so many files, those who come later hear it too",
          "[unit][comm][rendezvous]") {
  constexpr int kSize = 30;
  const int port = loopback::free_port();
  const pid_t child = fork();  // the limit is a process's
  REQUIRE(child >= 0);
  if (child == 0) {
    const Socket next([&] { return open("/dev/null", O_RDONLY); });
    const rlimit few{static_cast<rlim_t>(next.fd() + 12), static_cast<rlim_t>(next.fd() + 12)};
    setrlimit(RLIMIT_NOFILE, &few);
    try {
      accept_all_ranks(meeting(port, 0, kSize), Deadline::in_ms(kLong));
    } catch (const Error& e) {
      _exit(e.status() == Status::kComm ? 0 : 1);
    } catch (...) {
    }
    _exit(1);
  }
  std::vector<Visitor> ranks;
  int told = 0;
  for (int r = 1; r < kSize; ++r) {
    ranks.emplace_back(port);
    if (ranks.back().greeted()) ranks.back().says(r, kSize);
  }
  for (Visitor& v : ranks)
    told += v.answer().find("raise the limit of open files") != std::string::npos;
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(told == kSize - 1);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("reception: a rank that is none of them is told so", "[unit][comm][rendezvous]") {
  for (const int rank : {-5, 0, 3}) {
    std::string answer;
    const auto outcome = while_rank_0_waits(3, [&](int port) {
      Visitor visitor(port);
      if (visitor.greeted()) visitor.says(rank, 3);
      answer = visitor.answer();
      for (const int other : {1, 2}) {  // rank 0 goes when all have heard it
        Visitor late(port);
        if (late.greeted()) late.says(other, 3);
      }
    });
    CHECK(answer.find(cat("says it is rank ", rank, " (1 to 2")) != std::string::npos);
    CHECK((outcome && outcome->status() == Status::kMismatch));
  }
}

TEST_CASE("reception: a rank that is turned away without an answer comes again",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const std::vector<Socket> listeners = listen_at(resolve(loopback::at_port(port)), 4);
  const Socket& door = listeners[0];
  int claims = 0;
  std::thread rank_0([&] {
    while (claims < 3 && wait_for(door.fd(), POLLIN, Deadline::in_ms(kLong))) {
      const Socket line([&] { return accept(door.fd(), nullptr, nullptr); });
      const Greeting greeting{kGreeting, fresh_nonce()};
      Claim claim{};
      send_value(line, greeting);
      if (!take(line, claim)) continue;
      if (++claims == 3)
        send_value(line, make_answer(kSecret, greeting.nonce, claim.nonce, Status::kOk, ""));
    }
  });
  const auto outcome =
      on_ranks(1, [&](int) { connect_to_rank_0(meeting(port, 1, 2), Deadline::in_ms(kLong)); });
  rank_0.join();
  CHECK(text_of(outcome) == "");
  CHECK(claims == 3);
}

TEST_CASE("reception: a rank of an older version of the wire is refused by name, on all",
          "[unit][comm][rendezvous]") {
  const std::string words =
      "rendezvous: rank 1 speaks version 1 of what goes over the wire, rank 0 2; use one version "
      "of "
      "muonrt on all ranks";
  std::string answers;
  const auto outcome = while_rank_0_waits(3, [&](int port) {
    Visitor two(port), old(port);
    if (two.greeted()) two.says(2, 3);
    if (old.greeted()) old.says(1, 3, fresh_nonce(), 0);  // as version 1 said
    answers = old.answer() + " " + two.answer();
  });
  REQUIRE(outcome);
  CHECK(outcome->status() == Status::kMismatch);
  CHECK(outcome->message() == words);
  CHECK(answers.find("MUONRT_ERROR_MISMATCH " + words) == 0);
  CHECK(answers.rfind(words) > words.size());  // the third rank hears it, too
}

namespace {

/// What becomes of rank 1 where rank 0, for whom the test speaks, answers so.
std::optional<Error> rank_1_hears(const std::function<void(Answer&)>& change, int32_t wire) {
  const int port = loopback::free_port();
  const std::vector<Socket> listeners = listen_at(resolve(loopback::at_port(port)), 4);
  std::thread rank_0([&] {
    if (!wait_for(listeners[0].fd(), POLLIN, Deadline::in_ms(kLong))) return;
    const Socket line([&] { return accept(listeners[0].fd(), nullptr, nullptr); });
    const Greeting greeting{kGreeting, fresh_nonce()};
    Claim claim{};
    send_value(line, greeting);
    if (!take(line, claim)) return;
    Answer answer = make_answer(kSecret, greeting.nonce, claim.nonce, Status::kOk, "");
    answer.wire = wire;
    answer.proof = proof_of(kSecret, greeting.nonce, claim.nonce, answer);
    change(answer);
    send_value(line, answer);
  });
  const auto outcome =
      on_ranks(1, [&](int) { connect_to_rank_0(meeting(port, 1, 2), Deadline::in_ms(kLong)); });
  rank_0.join();
  return outcome[0];
}

template <class T>
void flip(T& value, size_t bit) {
  reinterpret_cast<unsigned char*>(&value)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
}

}  // namespace

TEST_CASE("reception: a rank 0 of an older version of the wire is refused by name",
          "[unit][comm][rendezvous]") {
  const auto nothing = [](Answer&) {};
  CHECK(text_of({rank_1_hears(nothing, kProtocolVersion)}) == "");
  const auto old = rank_1_hears(nothing, 0);
  REQUIRE(old);
  CHECK(old->status() == Status::kMismatch);
  CHECK(old->message() ==
        "rendezvous: rank 0 speaks version 1 of what goes over the wire, rank 1 2; use one version "
        "of muonrt on all ranks");
}

TEST_CASE("reception: a bit that changes on its way lets nobody in", "[unit][comm][rendezvous]") {
  for (size_t bit = 0; bit < 8 * sizeof(Answer); bit += 131) {
    const auto outcome = rank_1_hears([&](Answer& a) { flip(a, bit); }, kProtocolVersion);
    INFO("bit " << bit << " of the answer");
    REQUIRE(outcome);
    CHECK(outcome->status() == Status::kComm);
    CHECK(outcome->message().find("rank 0") != std::string::npos);
  }
  int welcome = 0;
  const auto outcome = while_rank_0_waits(2, [&](int port) {
    for (size_t bit = 0; bit < 8 * sizeof(Claim); bit += 23) {
      Visitor visitor(port);
      if (!visitor.greeted()) return;
      visitor.claim = {kClaim, 1, 2, 100, kProtocolVersion, fresh_nonce(), {}};
      visitor.claim.proof = proof_of(kSecret, visitor.greeting.nonce, visitor.claim);
      flip(visitor.claim, bit);
      send_value(visitor.socket, visitor.claim);
      welcome += visitor.answer() == "MUONRT_OK ";
    }
    Visitor good(port);
    if (good.greeted()) good.says(1, 2);
    welcome += 100 * (good.answer() == "MUONRT_OK ");
  });
  CHECK(text_of({outcome}) == "");
  CHECK(welcome == 100);
}
