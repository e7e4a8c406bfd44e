// Bits that change in transit, and frames that no rank of muonrt sends.
#include <poll.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/mailbox_transport.hpp"
#include "comm/tcp/receive_queues.hpp"
#include "comm/tcp/tcp_mailbox.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 60'000;
constexpr uint64_t kChannel = 1;  // of the first transport over a mailbox

std::unique_ptr<Transport> transport_over(int rank, int size, std::vector<Socket> connections) {
  auto out = make_mailbox_transport(make_mailbox_over(rank, size, std::move(connections)));
  out->set_timeout_ms(kLong);
  return out;
}

std::vector<Socket> only(Socket s) {
  std::vector<Socket> out;
  out.push_back(std::move(s));
  return out;
}

/// Forwards bytes from one socket to another until the first one ends, and flips one bit.
void pump(const Socket& from, const Socket& to, int64_t flipped) {
  std::vector<char> buffer(1 << 16);
  int64_t passed = 0;
  while (true) {
    const ssize_t n = recv(from.fd(), buffer.data(), buffer.size(), 0);
    if (n <= 0) break;
    const int64_t at = flipped < 0 ? -1 : flipped / 8 - passed;
    if (at >= 0 && at < n) buffer[static_cast<size_t>(at)] ^= static_cast<char>(1 << flipped % 8);
    passed += n;
    if (send(to.fd(), buffer.data(), static_cast<size_t>(n), MSG_NOSIGNAL) != n) break;
  }
  shutdown(to.fd(), SHUT_RDWR);
  shutdown(from.fd(), SHUT_RDWR);
}

struct Flip {
  int rank;     // the connection of this rank to rank 0
  bool upward;  // true: in the data that the rank sends to rank 0
  int64_t bit;  // number of the bit in all data of this direction; -1: none
};

char value_of(int from, int to, int64_t i) { return static_cast<char>(31 * from + 7 * to + i); }

/// Every rank sends `bytes` bytes to every other rank, and all gather 8 bytes.
void exchange_data(Transport& mine, int64_t bytes) {
  const int size = mine.size(), me = mine.rank();
  std::vector<std::vector<char>> out(static_cast<size_t>(size)), in(out.size());
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (int r = 0; r < size; ++r) {
    auto &to = out[static_cast<size_t>(r)], &from = in[static_cast<size_t>(r)];
    for (int64_t i = 0; i < bytes; ++i) to.push_back(value_of(me, r, i));
    from.resize(to.size());
    if (r == me) continue;
    sends.push_back({r, to.data(), bytes});
    receives.push_back({r, from.data(), bytes});
  }
  mine.exchange(sends, receives);
  std::vector<int64_t> all(out.size());
  const int64_t own = 1000 + me;
  mine.allgather(&own, all.data(), sizeof own);
  for (int r = 0; r < size; ++r) {
    if (all[static_cast<size_t>(r)] != 1000 + r)
      throw Error(Status::kCorrupt, "wrong bits, and OK");
    for (int64_t i = 0; r != me && i < bytes; ++i) {
      if (in[static_cast<size_t>(r)][static_cast<size_t>(i)] != value_of(r, me, i))
        throw Error(Status::kCorrupt, "wrong bits, and OK");
    }
  }
}

/// Runs exchange_data() over connections that flip a bit. Returns the errors by rank.
std::vector<std::optional<Error>> exchange_with_flip(int size, int64_t bytes, const Flip& flip) {
  std::vector<Socket> at_router(static_cast<size_t>(size)), at_rank(at_router.size());
  std::vector<std::pair<Socket, Socket>> between;
  std::vector<std::thread> pumps;
  between.reserve(at_router.size());
  for (int r = 1; r < size; ++r) {
    auto [router, relay_to_router] = socket_pair();
    auto [rank, relay_to_rank] = socket_pair();
    at_router[static_cast<size_t>(r)] = std::move(router);
    at_rank[static_cast<size_t>(r)] = std::move(rank);
    between.emplace_back(std::move(relay_to_router), std::move(relay_to_rank));
    const auto& [up, down] = between.back();
    const int64_t flipped_bit = r == flip.rank ? flip.bit : -1;
    pumps.emplace_back([&, flipped_bit] { pump(down, up, flip.upward ? flipped_bit : -1); });
    pumps.emplace_back([&, flipped_bit] { pump(up, down, flip.upward ? -1 : flipped_bit); });
  }
  auto out = on_ranks(size, [&](int r) {
    auto mine = r == 0 ? std::move(at_router) : only(std::move(at_rank[static_cast<size_t>(r)]));
    exchange_data(*transport_over(r, size, std::move(mine)), bytes);
  });
  for (std::thread& t : pumps) t.join();
  return out;
}

void check_noticed(int size, int64_t bytes, const Flip& flip, int receiver, int sender) {
  const auto outcome = exchange_with_flip(size, bytes, flip);
  INFO("bit " << flip.bit << (flip.upward ? " from rank " : " to rank ") << flip.rank << "\n"
              << text_of(outcome));
  REQUIRE(outcome[static_cast<size_t>(receiver)]);
  const std::string text = outcome[static_cast<size_t>(receiver)]->message();
  CHECK(text.find("rank " + std::to_string(sender)) != std::string::npos);
  CHECK(text.find("corrupted in transit") != std::string::npos);
  for (const auto& error : outcome)
    if (error) CHECK(error->status() == Status::kComm);
}

constexpr int64_t kHead = 8 * sizeof(FrameHeader);  // bits

/// Returns the peak of this process's virtual memory in KiB.
int64_t peak_memory() {
  std::ifstream in("/proc/self/status");
  std::string word;
  int64_t out = 0;
  while (in >> word && word != "VmPeak:") continue;
  in >> out;
  return out;
}

struct Hostile {
  const char* name;
  FrameHeader head;
  std::string content;
  bool with_checksums = true;  // correct ones
};

/// Frames that `from` sends to `to`, the only other rank, on a channel with a posted receive of 16
/// bytes.
std::vector<Hostile> hostile_frames(int from, int to) {
  const std::string short_text(16, 'x'), full_payload(static_cast<size_t>(kMaxPayloadBytes), 'x');
  const auto frame = [&](FrameKind kind, int32_t target, const std::string& content) {
    const auto bytes = std::ssize(content);
    return FrameHeader{0, static_cast<int32_t>(kind), kChannel, from, target, bytes, 0, bytes, 0,
                       0};
  };
  std::vector<Hostile> out;
  const auto message = [&](const char* name, const std::string& content, auto change) {
    out.push_back({name, frame(FrameKind::kMessage, to, content), content});
    change(out.back().head);
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t bytes : {int64_t{3'900'000'000}, int64_t{1} << 62, kMost})
    message("a huge message", full_payload, [=](FrameHeader& h) { h.message_bytes = bytes; });
  for (const int64_t bytes : {int64_t{-1}, int64_t{0}, kMost, kMaxPayloadBytes + 1, int64_t{17}})
    message("size of a payload", short_text, [=](FrameHeader& h) { h.payload_bytes = bytes; });
  for (const int64_t bytes : {int64_t{-1}, int64_t{0}, int64_t{15}, -kMost - 1})
    message("size of a message", short_text, [=](FrameHeader& h) { h.message_bytes = bytes; });
  message("less than is expected", std::string(15, 'x'), [](FrameHeader&) {});
  for (const int64_t offset : {int64_t{-1}, int64_t{1}, int64_t{16}, kMost})
    message("an offset", short_text, [=](FrameHeader& h) { h.offset = offset; });
  message("a second part first", short_text, [](FrameHeader& h) {
    h.offset = kMaxPayloadBytes;
    h.message_bytes = kMaxPayloadBytes + 16;
  });
  for (const int32_t who : {-2, -1, to, 2, 1 << 30, std::numeric_limits<int32_t>::min()})
    message("a sender", short_text, [=](FrameHeader& h) { h.from = who; });
  for (const int32_t who : {-2, -1, from, 2, 1 << 30})
    message("a receiver", short_text, [=](FrameHeader& h) { h.to = who; });
  for (const int32_t kind : {-1, 0, 4, 5, 6, 7, 1 << 30})
    message("a kind", short_text, [=](FrameHeader& h) { h.kind = kind; });
  message("no checksums", short_text, [](FrameHeader& h) { h.magic = kFrameMagic; });
  out.back().with_checksums = false;
  message("protocol version 1", short_text, [](FrameHeader& h) { h.magic = 0x314d524d; });
  out.back().with_checksums = false;
  for (const int32_t status : {0, 1, 2, -1, 12345}) {
    const ErrorFrameHeader error{status, -1};
    std::string content(reinterpret_cast<const char*>(&error), sizeof error);
    content += "no error";
    out.push_back({"a status", frame(FrameKind::kError, kToAll, content), content});
  }
  for (const int32_t rank : {-2, 2, 1 << 30}) {
    const ErrorFrameHeader error{static_cast<int32_t>(Status::kAborted), rank};
    const std::string content(reinterpret_cast<const char*>(&error), sizeof error);
    out.push_back({"a rank in an error", frame(FrameKind::kError, kToAll, content), content});
  }
  for (const std::string& content : {std::string(7, 'x'), std::string(4009, 'x')})
    out.push_back({"size of an error", frame(FrameKind::kError, kToAll, content), content});
  out.push_back(
      {"a kLeft frame with a text", frame(FrameKind::kLeft, kToAll, short_text), short_text});
  return out;
}

void send_frame(const Socket& socket, Hostile frame) {
  if (frame.with_checksums) {
    // The checksum covers the actual content, also if the size in the header is wrong.
    frame.head.magic = kFrameMagic;
    frame.head.content_sum = crc32c(frame.content.data(), frame.content.size());
    frame.head.head_sum = head_sum(frame.head);
  }
  std::string all(reinterpret_cast<const char*>(&frame.head), sizeof frame.head);
  all += frame.content;
  [[maybe_unused]] const ssize_t n = send(socket.fd(), all.data(), all.size(), MSG_NOSIGNAL);
  shutdown(socket.fd(), SHUT_WR);
}

/// Returns the connections of rank `me` of two, and the end of the other rank.
std::pair<std::vector<Socket>, Socket> ends_of(int me) {
  auto [mine, other] = socket_pair();
  std::vector<Socket> all;
  if (me == 0) all.emplace_back();
  all.push_back(std::move(mine));
  return {std::move(all), std::move(other)};
}

}  // namespace

TEST_CASE("wire: the receiver detects a bit that changes in transit, and names the sender",
          "[unit][comm][rendezvous]") {
  REQUIRE(text_of(exchange_with_flip(2, 24, {1, true, -1})) == "");
  // An exchange of 24 bytes, then 8 up and 16 down.
  for (int64_t bit = 0; bit < 2 * kHead + 8 * (24 + 8); bit += 5)
    check_noticed(2, 24, {1, true, bit}, 0, 1);
  for (int64_t bit = 0; bit < 2 * kHead + 8 * (24 + 16); bit += 5)
    check_noticed(2, 24, {1, false, bit}, 1, 0);
}

TEST_CASE("wire: a bit of a long message, and of a message that rank 0 forwards",
          "[unit][comm][rendezvous]") {
  const int64_t bytes = 2 * kMaxPayloadBytes + 77, frame_bits = kHead + 8 * kMaxPayloadBytes;
  REQUIRE(text_of(exchange_with_flip(2, bytes, {1, true, -1})) == "");
  for (const int64_t bit : {kHead, frame_bits - 1, frame_bits + kHead + 4'000'003,
                            2 * frame_bits + 200, 2 * frame_bits + kHead + 8 * 77 - 1}) {
    check_noticed(2, bytes, {1, true, bit}, 0, 1);
    check_noticed(2, bytes, {1, false, bit}, 1, 0);
  }
  // Rank 2 sends to rank 0 first, then to rank 1.
  REQUIRE(text_of(exchange_with_flip(3, 24, {1, true, -1})) == "");
  const int64_t second = kHead + 8 * 24;
  for (const int64_t bit : {second + kHead + 3, second + kHead + 8 * 24 - 1})
    check_noticed(3, 24, {2, true, bit}, 1, 2);
}

TEST_CASE("wire: no frame of a hostile rank makes a result wrong or allocates much memory",
          "[unit][comm][rendezvous]") {
  const int64_t before = peak_memory();
  for (const int me : {0, 1}) {
    for (const Hostile& frame : hostile_frames(1 - me, me)) {
      auto [mine, other] = ends_of(me);
      const auto transport = transport_over(me, 2, std::move(mine));
      send_frame(other, frame);
      std::array<char, 16> data{};
      const ReceiveFrom receive{1 - me, data.data(), 16};
      const auto outcome = on_ranks(1, [&](int) { transport->exchange({}, {&receive, 1}); })[0];
      INFO("rank " << me << ": " << frame.name << " (kind " << frame.head.kind << ", from "
                   << frame.head.from << ", to " << frame.head.to << ", "
                   << frame.head.message_bytes << " bytes, at " << frame.head.offset << ": "
                   << frame.head.payload_bytes << ")");
      REQUIRE(outcome);
      INFO(outcome->message());
      CHECK((outcome->status() == Status::kComm || outcome->status() == Status::kMismatch));
      CHECK(outcome->message().find("rank " + std::to_string(1 - me)) != std::string::npos);
    }
  }
  CHECK(peak_memory() - before < int64_t{1} << 20);  // 1 GiB, including the stacks of threads
}

TEST_CASE("wire: a rejected part of a message is not delivered", "[unit][comm][rendezvous]") {
  ReceiveQueues queues(2);
  std::array<char, 16> data{};
  FrameHeader second{};
  second.channel = kChannel;
  second.from = 1;
  second.message_bytes = 16;
  second.offset = second.payload_bytes = 8;
  CHECK_FALSE(queues.add(second, data.data()));
  PostedReceive message{1, data.data(), 16};
  const auto outcome = on_ranks(1, [&](int) {
    queues.post_receives(kChannel, {&message, 1});
    queues.wait_receives(kChannel, Deadline::in_ms(0));
  })[0];
  REQUIRE(outcome);
  CHECK(outcome->status() == Status::kTimeout);
}

TEST_CASE("wire: a message of another size is a mismatch with both sizes, also in several parts",
          "[unit][comm][rendezvous]") {
  const int64_t sent = 3 * kMaxPayloadBytes, expected = 2 * kMaxPayloadBytes;
  const std::vector<char> source(static_cast<size_t>(sent));
  std::vector<char> data(static_cast<size_t>(expected));
  for (const bool early : {true, false}) {
    ReceiveQueues queues(2);
    const auto add = [&](int64_t bytes) {
      for (int64_t at = 0; at < bytes; at += kMaxPayloadBytes)
        CHECK(queues.add(message_frame(kChannel, 1, 0, source.data(), bytes, at),
                         source.data() + at));
    };
    PostedReceive message{1, data.data(), expected};
    if (!early) queues.post_receives(kChannel, {&message, 1});
    add(sent);
    add(expected);  // the next message is not delivered instead
    const auto outcome = on_ranks(1, [&](int) {
      if (early) queues.post_receives(kChannel, {&message, 1});
      queues.wait_receives(kChannel, Deadline::in_ms(0));
    })[0];
    REQUIRE(outcome);
    CHECK(outcome->status() == Status::kMismatch);
    const std::string text = outcome->message();
    CHECK(text.find(cat("rank 1 sent ", sent, " bytes, but this rank expected ", expected)) !=
          std::string::npos);
  }
}

TEST_CASE("wire: the text of a peer's error has no control characters",
          "[unit][comm][rendezvous]") {
  auto [mine, other] = ends_of(0);
  const auto transport = transport_over(0, 2, std::move(mine));
  const ErrorFrameHeader error{static_cast<int32_t>(Status::kAborted), -1};
  std::string content(reinterpret_cast<const char*>(&error), sizeof error);
  content += "a\x1b[2Jb\x7f";
  const auto bytes = std::ssize(content);
  send_frame(other, {"", {0, 2, kChannel, 1, kToAll, bytes, 0, bytes, 0, 0}, content});
  char byte = 0;
  const ReceiveFrom receive{1, &byte, 1};
  const auto outcome = on_ranks(1, [&](int) { transport->exchange({}, {&receive, 1}); })[0];
  REQUIRE(outcome);
  CHECK(outcome->status() == Status::kAborted);
  CHECK(outcome->message().find("a?[2Jb?") != std::string::npos);
}
