#include "comm/tcp/tcp_mailbox.hpp"

#include <poll.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>

#include "comm/tcp/frame.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;
using support::AllocationFailure;
using support::refusal;

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kOne = 11, kTwo = 12;
constexpr int64_t kLong = 30'000;

TcpRendezvous meeting(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", "a secret of this test", 100};
}

std::shared_ptr<Mailbox> join(int port, int rank, int size) {
  return make_tcp_mailbox(meeting(port, rank, size), kLong);
}

Deadline in_ms(int64_t ms) { return Deadline::in_ms(ms); }

/// Ranks 0 and 1 join; of rank 2 there is only its connection, `two`.
void meet_three(std::shared_ptr<Mailbox>& zero, std::shared_ptr<Mailbox>& one, Socket& two) {
  const int port = loopback::free_port();
  REQUIRE(text_of(on_ranks(3, [&](int rank) {
            if (rank == 0) zero = join(port, 0, 3);
            if (rank == 1) one = join(port, 1, 3);
            if (rank == 2) two = connect_to_rank_0(meeting(port, 2, 3), in_ms(kLong));
          })) == "");
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Frames that come over a raw connection, up to a head that `last` accepts; "" if all make sense.
template <class Last>
std::string read_frames(const Socket& socket, std::vector<FrameHeader>& heads, Last last) {
  const auto read = [&](void* data, int64_t bytes) {
    for (int64_t got = 0; got < bytes;) {
      if (!wait_for(socket.fd(), POLLIN, in_ms(5000))) return false;
      const ssize_t n = recv(socket.fd(), static_cast<char*>(data) + got,
                             static_cast<size_t>(bytes - got), MSG_DONTWAIT);
      if (n <= 0) return false;
      got += n;
    }
    return true;
  };
  std::vector<char> content;
  while (heads.empty() || !last(heads.back())) {
    FrameHeader head;
    if (!read(&head, sizeof head)) return "the connection has ended";
    if (const char* const fault = frame_problem(head, 4)) return fault;
    content.resize(static_cast<size_t>(head.payload_bytes));
    if (!read(content.data(), head.payload_bytes)) return "a frame that is not whole";
    if (!payload_matches(head, content.data())) return "a frame that has changed";
    heads.push_back(head);
  }
  return "";
}

}  // namespace

TEST_CASE("tcp: where rank 0 reads nothing, an error wakes its own sender and does not block",
          "[unit][comm][rendezvous][tsan]") {
  const int port = loopback::free_port();
  std::vector<Socket> router;
  std::shared_ptr<Mailbox> mailbox;
  REQUIRE(text_of(on_ranks(2, [&](int rank) {
            if (rank == 0) router = accept_all_ranks(meeting(port, 0, 2), in_ms(kLong));
            if (rank == 1) mailbox = join(port, 1, 2);
          })) == "");
  mailbox->enter(kOne);
  const std::vector<char> much(64 << 20);
  std::optional<Error> error;
  std::thread sender([&] {
    try {
      mailbox->send(kOne, 0, much.data(), std::ssize(much), in_ms(kLong));
    } catch (const Error& e) {
      error = e;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // by now it is stuck
  // One of another channel gives up by its deadline, and ends nothing but itself.
  const auto late =
      on_ranks(1, [&](int) { mailbox->send(kTwo, 0, much.data(), std::ssize(much), in_ms(100)); });
  REQUIRE(late[0]);
  CHECK(late[0]->status() == Status::kTimeout);
  CHECK(late[0]->message().find("rank 0 takes no more messages") != std::string::npos);
  const auto begin = Clock::now();
  mailbox->publish(kOne, Error(Status::kAborted, "stop"));
  mailbox->leave(kOne);
  sender.join();
  CHECK(seconds_since(begin) < 5);
  REQUIRE(error);
  CHECK(error->status() == Status::kAborted);

  // What rank 0 reads at last makes sense: the rest of a piece, then the error and the farewell.
  std::vector<FrameHeader> heads;
  std::thread reader([&] {
    error.reset();
    const std::string problem = read_frames(router[1], heads, [&](const FrameHeader& h) {
      return h.channel == kTwo && h.payload_bytes == 5;
    });
    if (!problem.empty()) error.emplace(Status::kInternal, problem);
  });
  CHECK(text_of(on_ranks(1, [&](int) { mailbox->send(kTwo, 0, "hello", 5, in_ms(kLong)); })) == "");
  reader.join();
  CHECK((error ? error->message() : "") == "");
  const auto has = [&](FrameKind kind) {
    return std::any_of(heads.begin(), heads.end(),
                       [&](const FrameHeader& h) { return h.kind == static_cast<int32_t>(kind); });
  };
  CHECK(has(FrameKind::kError));
  CHECK(has(FrameKind::kLeft));
}

TEST_CASE("tcp: a rank that reads nothing stops its senders, and nobody else",
          "[unit][comm][rendezvous]") {
  Socket silent;
  std::shared_ptr<Mailbox> zero, one;
  meet_three(zero, one, silent);
  std::optional<Error> stuck;
  std::thread sender([&] {
    const std::vector<char> much(300 << 20);
    try {
      one->send(kOne, 2, much.data(), std::ssize(much), in_ms(kLong));
    } catch (const Error& e) {
      stuck = e;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  // The same rank sends to rank 0 and back, on another channel; its errors arrive.
  CHECK(text_of(on_ranks(2, [&](int rank) {
          std::vector<char> data(3 << 20);
          Mailbox& mine = rank == 0 ? *zero : *one;
          for (int i = 0; i < 5; ++i) {
            mine.send(kTwo, 1 - rank, data.data(), std::ssize(data), in_ms(5000));
            mine.receive(kTwo, 1 - rank, data.data(), std::ssize(data), in_ms(5000));
          }
        })) == "");
  CHECK(!stuck);
  one->publish(kOne, Error(Status::kAborted, "stop"));
  sender.join();
  REQUIRE(stuck);
  CHECK(stuck->status() == Status::kAborted);
  for (int i = 0; i < 500 && !zero->published_error(kOne); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(zero->published_error(kOne));
  CHECK(zero->published_error(kOne)->message() == "rank 1 reported: stop");
  CHECK(zero->published_error(kOne)->rank() == 1);
  CHECK(zero->published_error(kOne)->is_remote());
  // Gone, it holds nobody back.
  silent = Socket();
  CHECK(text_of(on_ranks(1, [&](int) {
          const std::vector<char> more(2 << 20);
          one->send(kTwo, 2, more.data(), std::ssize(more), in_ms(5000));
        })) == "");
}

TEST_CASE("tcp: senders go on when a slow rank reads again", "[unit][comm][rendezvous]") {
  Socket slow;
  std::shared_ptr<Mailbox> zero, one;
  meet_three(zero, one, slow);
  const int64_t bytes = int64_t{200} << 20;
  std::vector<FrameHeader> heads;
  CHECK(text_of(on_ranks(2, [&](int rank) {
          if (rank == 0) {
            const std::vector<char> much(static_cast<size_t>(bytes));
            one->send(kOne, 2, much.data(), bytes, in_ms(kLong));
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(700));
            require_none(read_frames(slow, heads, [&](const FrameHeader& h) {
              return h.offset + h.payload_bytes == bytes;
            }));
          }
        })) == "");
  CHECK(std::ssize(heads) == bytes / kMaxPayloadBytes);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("tcp: a hub without memory stops its senders, and goes on when it has some again",
          "[unit][comm][rendezvous]") {
  Socket silent;
  std::shared_ptr<Mailbox> zero, one;
  meet_three(zero, one, silent);
  for (Mailbox* mailbox : {zero.get(), one.get()}) mailbox->enter(kOne);
  AllocationFailure::mark(false);
  refusal.begin_drought();
  const auto stuck = on_ranks(1, [&](int) {
    AllocationFailure::mark(false);
    const std::vector<char> much(80 << 20);
    one->send(kTwo, 2, much.data(), std::ssize(much), in_ms(1500));
  });
  CHECK(text_of(on_ranks(2, [&](int rank) {
          AllocationFailure::mark(false);
          char byte = 0;
          if (rank == 1) one->receive(kOne, 0, &byte, 1, in_ms(5000));
          if (rank == 1) silent = Socket();  // the hub drops what it holds for rank 2
          for (int i = 0; i < 2; ++i) {
            if (rank == 0) zero->send(kOne, 1, &byte, 1, in_ms(kLong));
            if (rank == 0) zero->receive(kOne, 1, &byte, 1, in_ms(kLong));
            byte = 7;
            if (rank == 1) one->send(kOne, 0, &byte, 1, in_ms(5000));
          }
          if (rank == 1) one->receive(kOne, 0, &byte, 1, in_ms(5000));
        })) == "");
  refusal.disarm();
  REQUIRE(stuck[0]);
  CHECK(stuck[0]->status() == Status::kTimeout);
  CHECK_THAT(stuck[0]->message(), Catch::Contains("rank 2 takes no more messages"));
}
#endif
