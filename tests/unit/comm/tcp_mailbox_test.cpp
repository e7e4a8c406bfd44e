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

TcpRendezvous config(int port, int rank, int size) {
  return {rank, size, loopback::at_port(port), "", "a secret of this test", 100};
}

std::shared_ptr<Mailbox> join(int port, int rank, int size) {
  return make_tcp_mailbox(config(port, rank, size), kLong);
}

Deadline in_ms(int64_t ms) { return Deadline::in_ms(ms); }

/// Creates the mailboxes of ranks 0 and 1, and only the connection of rank 2, `two`.
void connect_three(std::shared_ptr<Mailbox>& zero, std::shared_ptr<Mailbox>& one, Socket& two) {
  const int port = loopback::free_port();
  REQUIRE(text_of(on_ranks(3, [&](int rank) {
            if (rank == 0) zero = join(port, 0, 3);
            if (rank == 1) one = join(port, 1, 3);
            if (rank == 2) two = connect_to_rank_0(config(port, 2, 3), in_ms(kLong));
          })) == "");
}

/// Reads frames from a raw connection, up to a header that `last` accepts. Returns the problem, or
/// "" if all frames are valid.
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
    if (const char* const problem = frame_problem(head, 4)) return problem;
    content.resize(static_cast<size_t>(head.payload_bytes));
    if (!read(content.data(), head.payload_bytes)) return "a frame is not complete";
    if (!payload_matches(head, content.data())) return "the checksum of a payload is wrong";
    heads.push_back(head);
  }
  return "";
}

}  // namespace

TEST_CASE("tcp: if rank 0 reads nothing, publishing an error wakes up a sender and does not block",
          "[unit][comm][rendezvous][tsan]") {
  const int port = loopback::free_port();
  std::vector<Socket> router;
  std::shared_ptr<Mailbox> mailbox;
  REQUIRE(text_of(on_ranks(2, [&](int rank) {
            if (rank == 0) router = accept_all_ranks(config(port, 0, 2), in_ms(kLong));
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
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // by then it waits
  // A sender on another channel ends at its timeout, and does not affect the first one.
  const auto late =
      on_ranks(1, [&](int) { mailbox->send(kTwo, 0, much.data(), std::ssize(much), in_ms(100)); });
  REQUIRE(late[0]);
  CHECK(late[0]->status() == Status::kTimeout);
  CHECK(late[0]->message().find("rank 0 accepted no message") != std::string::npos);
  const auto begin = Clock::now();
  mailbox->publish(kOne, Error(Status::kAborted, "stop"));
  mailbox->leave(kOne);
  sender.join();
  CHECK(seconds_since(begin) < 5);
  REQUIRE(error);
  CHECK(error->status() == Status::kAborted);

  // Rank 0 now reads valid frames: the rest of a message frame, then the error and kLeft frames.
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

TEST_CASE("tcp: a rank that reads nothing pauses its senders, and no other rank",
          "[unit][comm][rendezvous]") {
  Socket silent;
  std::shared_ptr<Mailbox> zero, one;
  connect_three(zero, one, silent);
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
  // After its connection has ended, messages to it are not paused.
  silent = Socket();
  CHECK(text_of(on_ranks(1, [&](int) {
          const std::vector<char> more(2 << 20);
          one->send(kTwo, 2, more.data(), std::ssize(more), in_ms(5000));
        })) == "");
}

TEST_CASE("tcp: senders continue when a slow rank reads again", "[unit][comm][rendezvous]") {
  Socket slow;
  std::shared_ptr<Mailbox> zero, one;
  connect_three(zero, one, slow);
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
TEST_CASE("tcp: a router without memory pauses its senders, and continues when it has memory again",
          "[unit][comm][rendezvous]") {
  Socket silent;
  std::shared_ptr<Mailbox> zero, one;
  connect_three(zero, one, silent);
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
          if (rank == 1) silent = Socket();  // the router drops its frames for rank 2
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
  CHECK_THAT(stuck[0]->message(), Catch::Contains("rank 2 accepted no message"));
}
#endif
