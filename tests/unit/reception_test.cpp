// Rank 0's side of a meeting over TCP, against ranks that the test itself speaks for.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <thread>

#include "comm/handshake.hpp"
#include "comm/rendezvous.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

TcpMeeting meeting(int port, int rank, int size) {
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

  explicit Visitor(int port) : socket(loopback::connect_to(port)) {
    const timeval patience{kLong / 1000, 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  bool greeted() { return take(socket, greeting); }
  void says(int rank, int size, const Nonce& nonce = fresh_nonce()) {
    claim = {kClaim, rank, size, 100, 0, nonce, {}};
    claim.proof = proof_of(kSecret, greeting.nonce, claim);
    tell(socket, claim);
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
    outcome =
        on_ranks(1, [&](int) { meet_all(meeting(port, 0, size), Deadline::in_ms(kLong)); })[0];
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
    const Socket next(open("/dev/null", O_RDONLY));
    const rlimit few{static_cast<rlim_t>(next.fd() + 12), static_cast<rlim_t>(next.fd() + 12)};
    setrlimit(RLIMIT_NOFILE, &few);
    try {
      meet_all(meeting(port, 0, kSize), Deadline::in_ms(kLong));
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
  const std::vector<Socket> doors = listen_at(resolve(loopback::at_port(port)), 4);
  const Socket& door = doors[0];
  int claims = 0;
  std::thread rank_0([&] {
    while (claims < 3 && wait_for(door.fd(), POLLIN, Deadline::in_ms(kLong))) {
      const Socket line(accept(door.fd(), nullptr, nullptr));
      const Greeting greeting{kGreeting, fresh_nonce()};
      Claim claim{};
      tell(line, greeting);
      if (!take(line, claim)) continue;
      if (++claims == 3)
        tell(line, make_answer(kSecret, greeting.nonce, claim.nonce, Status::kOk, ""));
    }
  });
  const auto outcome =
      on_ranks(1, [&](int) { meet_rank_0(meeting(port, 1, 2), Deadline::in_ms(kLong)); });
  rank_0.join();
  CHECK(text_of(outcome) == "");
  CHECK(claims == 3);
}
