// Tests ranks that use TCP: invalid frames, a blocked port, many ranks, and the addresses and
// sockets that they use. The tests in tests/simulation cover flow control, changed bits, lost
// connections and connections without a proof.
#include <poll.h>
#include <sys/ioctl.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "comm/tcp/tcp_world.hpp"
#include "support/faults/allocation_failure.hpp"
#include "support/loopback.hpp"
#include "support/tcp_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;
using support::AllocationFailure;
using support::refusal;

namespace {

/// Returns the peak of this process's virtual memory in KiB.
int64_t peak_memory() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word && word != "VmPeak:") continue;
  in >> word;
  return std::stoll(word);
}

struct Hostile {
  FrameHeader head;
  std::string content;
};

Hostile frame_of(FrameKind kind, int from, int to, const std::string& content) {
  return {{.kind = kind,
           .channel = 1,  // the channel of a transport that is not a duplicate
           .from = from,
           .to = to,
           .message_bytes = std::ssize(content),
           .payload_bytes = std::ssize(content)},
          content};
}

Hostile grant_of(int from, int to, int64_t bytes) {
  Hostile out = frame_of(FrameKind::kGrant, from, to, "");
  out.head.message_bytes = bytes;
  return out;
}

Hostile error_frame(int from, int to, ErrorFrameHeader error, const std::string& text) {
  return frame_of(FrameKind::kError, from, to, std::string(bytes_of(error)) + text);
}

/// Returns frames from `from` to `to` in a world of two ranks, in which `to` expects a message of
/// 16 bytes. Each frame differs from a valid frame in one field.
std::vector<Hostile> hostile_frames(int from, int to) {
  std::vector<Hostile> out;
  const auto change = [&](const Hostile& valid, auto FrameHeader::*field, auto... values) {
    for (const auto value : {static_cast<std::decay_t<decltype(valid.head.*field)>>(values)...}) {
      if (valid.head.*field == value) continue;
      out.push_back(valid);
      out.back().head.*field = value;
    }
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = -kMost - 1;
  const Hostile data = frame_of(FrameKind::kData, from, to, std::string(16, 'x'));
  for (const auto field :
       {&FrameHeader::message_bytes, &FrameHeader::offset, &FrameHeader::payload_bytes})
    change(data, field, kLeast, -1, 0, 1, 15, 16, 17, kMaxPayloadBytes + 1, 3'900'000'000, kMost);
  change(data, &FrameHeader::number, 1, 2, -1);
  change(data, &FrameHeader::from, -2, -1, to, from, 2, 1 << 30);
  change(data, &FrameHeader::to, -2, -1, to, from, 2, 1 << 30);
  change(data, &FrameHeader::kind, -1, 0, 1, 2, 4, 5, 6, 1 << 30);
  const Hostile part = frame_of(FrameKind::kData, from, to, std::string(kMaxPayloadBytes, 'x'));
  change(part, &FrameHeader::message_bytes, 3'900'000'000, kMost);
  change(part, &FrameHeader::offset, kMaxPayloadBytes);
  change(part, &FrameHeader::number, 1);
  change(grant_of(from, to, 16), &FrameHeader::number, 1, -1);
  for (const ErrorFrameHeader error :
       {ErrorFrameHeader{0, -1}, {1, -1}, {-1, -1}, {12345, -1}, {52, -2}, {52, 2}})
    out.push_back(error_frame(from, to, error, "no error"));
  for (const size_t bytes : {size_t{7}, size_t{4009}})
    out.push_back(frame_of(FrameKind::kError, from, to, std::string(bytes, 'x')));
  return out;
}

void send_frame(const Socket& socket, Hostile frame) {
  // The checksum is correct for the actual content, even if the size in the header is wrong.
  frame.head.magic = kFrameMagic;
  frame.head.content_sum = crc32c(frame.content.data(), frame.content.size());
  frame.head.head_sum = head_sum(frame.head);
  const std::string all = std::string(bytes_of(frame.head)) + frame.content;
  [[maybe_unused]] const ssize_t n = send(socket.fd(), all.data(), all.size(), MSG_NOSIGNAL);
  shutdown(socket.fd(), SHUT_WR);
}

/// Returns the transport of rank `me` in a world of two, and the other end of its connection, which
/// the test controls.
std::pair<std::unique_ptr<Transport>, Socket> one_of_two(int me) {
  auto ranks = tcp_connections(2);
  Socket other = std::move(ranks[static_cast<size_t>(1 - me)].sockets[static_cast<size_t>(me)]);
  auto mine = make_tcp_transport(std::move(ranks[static_cast<size_t>(me)]));
  mine->set_timeout_ms(60'000);
  return {std::move(mine), std::move(other)};
}

int64_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
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

/// Makes all ranks gather, and exchange with their neighbors, and checks the number of open files.
void check_many(int size, int rounds) {
  const int64_t before = open_files();
  auto ranks = over_tcp(size);
  std::atomic<int64_t> most = 0;
  const auto errors = on_ranks(size, [&](int rank) {
    const auto mine = std::move(ranks[static_cast<size_t>(rank)]);
    mine->set_timeout_ms(120'000);
    require_none(check_allgather(*mine, 100, 1));
    require_none(check_reductions(*mine, 20, 2));
    require_none(check_allgather(*mine->duplicate(), 5000, 3));
    if (rank == 0) most = open_files();
    require_none(check_allgather(*mine, 1, 4));
  });
  CHECK(text_of(errors) == "");
  // Each rank opens a listener, an eventfd, a connection to rank 0, and two in each round.
  CHECK(most - before <= size * (2 * rounds + 4));
}

}  // namespace

TEST_CASE("tcp: no hostile frame makes a result wrong or allocates much memory", "[unit][tcp]") {
  const int64_t before = peak_memory();
  for (const int me : {0, 1}) {
    for (const Hostile& frame : hostile_frames(1 - me, me)) {
      const auto [transport, other] = one_of_two(me);
      send_frame(other, frame);
      const auto outcome = receive_error(*transport, 1 - me);
      INFO("rank " << me << ": kind " << static_cast<int>(frame.head.kind) << ", "
                   << frame.content.size() << " bytes; " << text_of({outcome}));
      const std::string peer = cat("rank ", 1 - me);
      CHECK((is_error(outcome, Status::kComm, peer) || is_error(outcome, Status::kMismatch, peer)));
    }
  }
  CHECK(peak_memory() - before < int64_t{1} << 20);  // 1 GiB, including the stacks of threads
}

TEST_CASE("tcp: the text of a peer's error has no control characters", "[unit][tcp]") {
  const auto [transport, other] = one_of_two(0);
  const ErrorFrameHeader error{static_cast<int32_t>(Status::kAborted), -1};
  send_frame(other, error_frame(1, kToAll, error, "a\x1b[2Jb\x7f"));
  CHECK(is_error(receive_error(*transport, 1), Status::kAborted, "a?[2Jb?"));
}

TEST_CASE("tcp: a message is sent when it is expected, and can be aborted", "[unit][tcp][tsan]") {
  const std::vector<char> much(64 << 20);
  const SendTo send{0, much.data(), std::ssize(much)};
  for (const bool granted : {false, true}) {
    const auto [transport, other] = one_of_two(1);
    if (granted) send_frame(other, grant_of(0, 1, std::ssize(much)));
    const auto begin = Deadline::Clock::now();
    const auto errors = on_ranks(2, [&, t = transport.get()](int thread) {
      if (thread == 0) return t->exchange({&send, 1}, {});
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      t->abort(Status::kAborted, "enough");  // if the message is granted, part of it is written
    });
    CHECK(seconds_since(begin) < 5);
    // The other end has closed its direction of the connection, which also ends the exchange.
    CHECK((errors[0] && (granted || errors[0]->status() == Status::kAborted)));
    int arrived = 0;
    ioctl(other.fd(), FIONREAD, &arrived);
    CHECK((arrived > 4096) == granted);
  }
}

TEST_CASE("tcp: operations after the first ones do not allocate", "[unit][tcp]") {
  const auto ranks = over_tcp(3);
  refusal.disarm();
  const auto errors = on_ranks(3, [&](int r) {
    AllocationFailure::mark(false);
    Transport& mine = *ranks[static_cast<size_t>(r)];
    std::vector<char> data(1 << 20), all(3 << 20);
    for (int turn = 0; turn < 4; ++turn) {
      for (const int64_t bytes : {1, 1 << 20}) {
        const SendTo send{(r + 1) % 3, data.data(), bytes};
        const ReceiveFrom receive{(r + 2) % 3, all.data(), bytes};
        mine.exchange({&send, 1}, {&receive, 1});
        if (r == 0) mine.exchange({&send, 1}, {});
        if (r == 1) mine.exchange({}, {&receive, 1});
        mine.allgather(data.data(), all.data(), bytes);
      }
      // From now on, all allocations of the service thread of rank 0 fail.
      if (turn == 0 && r == 0) refusal.begin_drought();
      mine.allgather(data.data(), all.data(), 1);
      if (turn == 0) {
        AllocationFailure::mark(true);
        if (r == 1) refusal.arm(0);
      }
    }
    AllocationFailure::mark(false);
    mine.allgather(data.data(), all.data(), 1);
  });
  CHECK(text_of(errors) == "");
  CHECK_FALSE(refusal.fired());
  refusal.disarm();
}

TEST_CASE("tcp: the error of a blocked connection contains both addresses", "[unit][tcp]") {
  auto ranks = tcp_connections(3);
  const auto closed = static_cast<uint16_t>(loopback::free_port());
  for (TcpConnections& c : ranks) c.addresses[1] = c.addresses[1].with_port(closed);
  const auto errors = on_ranks(3, [&](int rank) {
    const auto mine = make_tcp_transport(std::move(ranks[static_cast<size_t>(rank)]));
    mine->set_timeout_ms(30'000);
    if (const auto error = receive_error(*mine, rank == 1 ? 2 : 1)) throw *error;
  });
  const std::string text =
      cat("rank 2 at 127.0.0.1 cannot connect to rank 1 at 127.0.0.1:", closed, " (errno 111");
  for (const auto& error : errors) CHECK(is_error(error, Status::kComm, text));
}

TEST_CASE("tcp: if rank 0 has left, errors reach ranks without connections", "[unit][tcp][tsan]") {
  for (const bool leaves : {false, true}) {
    auto ranks = over_tcp(3);
    ranks[0].reset();
    ranks[2]->abort(Status::kAborted, "enough");
    if (leaves) ranks[2].reset();
    ranks[1]->set_timeout_ms(60'000);
    CHECK(is_error(receive_error(*ranks[1], 2), leaves ? Status::kComm : Status::kAborted,
                   leaves ? "rank 1 at 127.0.0.1 cannot connect to rank 2" : "enough"));
  }
}

TEST_CASE("tcp: a rank that left a duplicate is reported to later connections", "[unit][tcp]") {
  for (const bool leaves : {false, true}) {  // whether rank 0 leaves
    auto ranks = over_tcp(6);
    std::vector<std::unique_ptr<Transport>> copies(6);
    require_none(text_of(on_ranks(6, [&](int r) {
      copies[static_cast<size_t>(r)] = ranks[static_cast<size_t>(r)]->duplicate();
    })));
    if (leaves) ranks[0].reset(), copies[0].reset();
    copies[2].reset();
    ranks[2]->set_timeout_ms(1000);
    copies[5]->set_timeout_ms(60'000);
    const auto errors = on_ranks(2, [&](int thread) {  // ranks 2 and 5 have no connection yet
      const auto error = thread == 0 ? receive_error(*ranks[2], 5) : receive_error(*copies[5], 2);
      if (error) throw *error;
    });
    CHECK(is_error(errors[1], Status::kComm, "rank 2 destroyed its communicator"));
  }
}

TEST_CASE("tcp: 64 ranks gather, and each opens few connections", "[unit][tcp]") {
  check_many(64, 6);
}

TEST_CASE("tcp: 256 ranks gather, and each opens few connections", "[.full]") {
  check_many(256, 8);
}

TEST_CASE("addresses: only addresses of the chosen interface are used", "[unit][tcp]") {
  // Every address of the loopback network belongs to the interface lo.
  CHECK(texts(addresses_on("lo", list({"127.0.0.9:80"}))) == "127.0.0.9:80 ");
  CHECK(texts(addresses_on("lo", list({"198.51.100.7:80", "127.0.0.9:80", "127.0.0.8:80"}))) ==
        "127.0.0.9:80 127.0.0.8:80 ");
  // A name may resolve to addresses of both families, but an interface may have only one family.
  CHECK(texts(addresses_on("127.0.0.1", list({"[::1]:80", "127.0.0.1:80"}))) == "127.0.0.1:80 ");
  // A translated address (NAT) does not belong to any interface of the machine.
  CHECK(texts(addresses_on("127.0.0.1", list({"198.51.100.7:80"}))) == "127.0.0.1:80 ");
  const auto routes = routes_from("127.0.0.1", list({"[::1]:80", "127.0.0.9:80"}));
  REQUIRE(routes.size() == 1);
  CHECK(texts({routes[0].from, routes[0].to}) == "127.0.0.1:0 127.0.0.9:80 ");
  CHECK_THROWS_WITH(addresses_on("127.0.0.1", list({"[::1]:80"})),
                    Catch::Contains("has no IPv6 address"));
  for (const TcpConnections& c : tcp_connections(3, "127.0.0.1"))
    CHECK((c.rank == 0 || c.from.text() == "127.0.0.1:0"));
}

TEST_CASE("addresses: rank 0 listens at all its addresses, on the first free port", "[unit][tcp]") {
  const auto listeners = listen_at(list({"127.0.0.1:0", "198.51.100.7:0", "127.0.0.2:0"}));
  const std::string port = cat(':', address_of(listeners.at(0)).port());
  CHECK((port != ":0" && listeners.size() == 2));
  CHECK(texts({address_of(listeners[0]), address_of(listeners[1])}) ==
        cat("127.0.0.1", port, " 127.0.0.2", port, " "));
  for (const std::string host : {"198.51.100.7", "127.0.0.1"})
    CHECK_THROWS_WITH(listen_at(list({host + port})), Catch::Contains("cannot listen at " + host));
  CHECK(
      (port_of("127.0.0.1" + port) == address_of(listeners[0]).port() && port_of("[::1]:0") == 0));
  const int32_t first = loopback::free_port(), last = first + 2;
  std::vector<Socket> taken;  // fewer than three if another program uses a port of the range
  const auto error = error_of([&] {
    while (taken.size() <= 3)
      taken.push_back(std::move(listen_at(list({"127.0.0.1:0"}), {first, last})[0]));
  });
  CHECK(is_error(error, Status::kComm, cat("no port from ", first, " to ", last, " is free")));
  for (int32_t least = first; const Socket& listener : taken) {
    const int32_t got = address_of(listener).port();
    CHECK((got >= least++ && got <= last));
  }
}

TEST_CASE("socket: a connection to itself is detected, and frees its port at once", "[unit][tcp]") {
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
