#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>

#include "comm/thread_transport.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 60'000;

std::string run(int size, ThreadFaults faults, const std::function<void(Transport&)>& body) {
  ThreadGroup group(size, std::move(faults));
  return text_of(on_group(group, kLong, body));
}

}  // namespace

TEST_CASE("thread transport: a duplicate remains usable without its original and its group",
          "[unit][comm]") {
  std::vector<std::unique_ptr<Transport>> duplicates(4);
  {
    ThreadGroup group(4);
    const auto errors = on_group(group, kLong, [&](Transport& t) {
      duplicates[static_cast<size_t>(t.rank())] = t.duplicate();
    });
    REQUIRE(text_of(errors) == "");
  }
  const auto errors = on_ranks(4, [&](int rank) {
    require_none(check_allgather(*duplicates[static_cast<size_t>(rank)], 9, 1));
  });
  REQUIRE(text_of(errors) == "");
}

TEST_CASE("thread transport: after_delivery and after_operation report each event once",
          "[unit][comm][tsan]") {
  // Rank 0 sends only after rank 1 has received the message from rank 2.
  std::atomic<bool> arrived = false;
  std::atomic<int> completed = 0;
  ThreadFaults faults;
  faults.after_delivery = [&](const ThreadMessage& m) {
    if (m.from == 2 && m.to == 1 && m.receive_ordinal == 0) arrived = true;
  };
  faults.after_operation = [&](int32_t channel, int32_t rank, const Operation& operation) {
    if (channel == 0 && rank == 1 && operation.kind == OperationKind::kExchange) ++completed;
  };
  ThreadGroup group(3, faults);
  const auto errors = on_group(group, kLong, [&](Transport& t) {
    char from_2 = 0, from_0 = 0;
    const char mine = static_cast<char>('a' + t.rank());
    const SendTo send{1, &mine, 1};
    const ReceiveFrom receive_2{2, &from_2, 1}, receive_0{0, &from_0, 1};
    if (t.rank() == 2) t.exchange({&send, 1}, {});
    if (t.rank() == 0) {
      while (!arrived) std::this_thread::yield();
      t.exchange({&send, 1}, {});
    }
    if (t.rank() == 1) {
      t.exchange({}, {&receive_2, 1});
      t.exchange({}, {&receive_0, 1});
      require_none(from_2 == 'c' && from_0 == 'a' ? "" : "wrong bytes");
    }
  });
  REQUIRE(text_of(errors) == "");
  REQUIRE(arrived);
  REQUIRE(completed == 2);
}

TEST_CASE("thread transport: the receiver copies messages with the function that it passes",
          "[unit][comm][tsan]") {
  for (const int size : {1, 3, 5}) {
    INFO(size << " ranks");
    REQUIRE(
        run(size, {}, [&](Transport& t) {
          const auto thread = std::this_thread::get_id();
          int copies = 0;
          bool elsewhere = false;
          const CopyMessage copy = [&](void* to, const void* from, int64_t bytes) {
            elsewhere = elsewhere || std::this_thread::get_id() != thread;
            for (int64_t i = 0; i < bytes; ++i)
              static_cast<unsigned char*>(to)[i] =
                  static_cast<const unsigned char*>(from)[i] ^ 0x5au;
            ++copies;
          };
          std::vector<unsigned char> out(100, static_cast<unsigned char>(t.rank()));
          std::vector<std::vector<unsigned char>> in(static_cast<size_t>(size),
                                                     std::vector<unsigned char>(100, 0xffu));
          std::vector<SendTo> sends;
          std::vector<ReceiveFrom> receives;
          for (int32_t peer = 0; peer < size; ++peer) {
            sends.push_back({peer, out.data(), 50 + t.rank() + peer});
            receives.push_back({peer, in[static_cast<size_t>(peer)].data(), 50 + t.rank() + peer});
          }
          t.exchange(sends, receives, &copy);
          for (int peer = 0; peer < size; ++peer) {
            for (int i = 0; i < 100; ++i) {
              const int expected = i < 50 + t.rank() + peer ? peer ^ 0x5a : 0xff;
              if (in[static_cast<size_t>(peer)][static_cast<size_t>(i)] != expected)
                require_none("a byte is wrong");
            }
          }
          require_none(copies == size && !elsewhere ? "" : "number of copies, or their thread");
          // Later operations use memcpy again.
          require_none(check_allgather(t, 64, 7));
        }) == "");
  }
}

TEST_CASE(
    "thread transport: a copy that fails is an error of its receiver, and the senders continue",
    "[unit][comm][tsan]") {
  ThreadGroup group(3);
  std::atomic<int> late = 0;
  std::atomic<bool> returned[3] = {};
  const auto errors = on_group(group, kLong, [&](Transport& t) {
    const auto mine = static_cast<size_t>(t.rank());
    const CopyMessage copy = [&](void* to, const void* from, int64_t bytes) {
      if (t.rank() == 1) throw Error(Status::kDevice, "the copy engine is on fire");
      // After a sender has returned, its buffer may have been freed.
      late += returned[*static_cast<const char*>(from) - 'a'] ? 1 : 0;
      std::memcpy(to, from, static_cast<size_t>(bytes));
    };
    const char out = static_cast<char>('a' + t.rank());
    char in[3] = {};
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
    for (int32_t peer = 0; peer < 3; ++peer) {
      if (peer == t.rank()) continue;
      sends.push_back({peer, &out, 1});
      receives.push_back({peer, &in[peer], 1});
    }
    try {
      t.exchange(sends, receives, &copy);
    } catch (...) {
      returned[mine] = true;
      throw;
    }
    returned[mine] = true;
    t.allgather(&out, in,
                1);  // fails on the other ranks, because rank 1 has failed
  });
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
    INFO("rank " << rank);
    REQUIRE(errors[rank]);
    CHECK(errors[rank]->status() == Status::kDevice);
    CHECK(errors[rank]->message().find("the copy engine is on fire") != std::string::npos);
  }
  CHECK(errors[0]->message().find("rank 1 reported") != std::string::npos);
  CHECK(late == 0);
}
