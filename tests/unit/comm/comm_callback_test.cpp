#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <memory>

#include "comm/callback_transport.hpp"
#include "comm/thread_transport.hpp"
#include "support/callback_table.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;
using callback_table::table_over;
using Catch::Contains;

namespace {

muonrt_transport_t minimal() {
  muonrt_transport_t table;
  muonrt_transport_init(&table);
  table.rank = 0;
  table.size = 2;
  table.exchange = callback_table::exchange;
  table.allgather = callback_table::allgather;
  return table;
}

std::string rejection(const muonrt_transport_t* table) {
  try {
    read_transport(table);
  } catch (const Error& e) {
    return e.status() == Status::kInvalidArgument ? e.message() : "another status";
  }
  return "accepted";
}

}  // namespace

TEST_CASE(
    "callback transport: duplicates with the table's function, or shares the state and destroys it "
    "once",
    "[unit][comm][tsan]") {
  for (const bool duplicates : {true, false}) {
    std::atomic<int> destroyed = 0, early = 0;
    ThreadGroup group(3);
    const auto errors = on_ranks(3, [&](int rank) {
      muonrt_transport_t table = table_over(group.transport(rank), destroyed);
      if (!duplicates) table.duplicate = nullptr;
      auto parent = std::make_unique<CallbackTransport>(read_transport(&table));
      const auto child = parent->duplicate();
      const auto grandchild = child->duplicate();
      require_none(check_allgather(*grandchild, 50, 1) + check_allgather(*parent, 50, 2));
      require_none(grandchild->rank() == rank && grandchild->size() == 3 ? "" : "rank or size");
      parent.reset();
      if (!duplicates) early += destroyed > 0;
      require_none(check_allgather(*grandchild, 50, 3) + check_allgather(*child, 50, 4));
    });
    INFO("duplicates " << duplicates);
    REQUIRE(text_of(errors) == "");
    REQUIRE(early == 0);
    REQUIRE(destroyed == (duplicates ? 9 : 3));
  }
}

TEST_CASE("callback transport: abort is called once, and again by the next operation if needed",
          "[unit][comm]") {
  static int calls = 0;
  for (const bool caller_only : {false, true}) {
    for (const bool from_other_thread : {false, true}) {
      CAPTURE(caller_only, from_other_thread);
      calls = 0;
      muonrt_transport_t table = minimal();
      table.caller_thread_only = caller_only;
      table.allgather = [](void*, const void*, void*, int64_t, int64_t, char*, int64_t) {
        return muonrt_status_t{MUONRT_ERROR_COMM};
      };
      table.abort = [](void*, muonrt_status_t, const char*) { ++calls; };
      CallbackTransport t(read_transport(&table));
      if (from_other_thread) t.abort(Status::kAborted, "enough");
      char mine = 0, all[2] = {};
      for (int i = 0; i < 3; ++i) CHECK_THROWS_AS(t.allgather(&mine, all, 1), Error);
      CHECK(calls == (caller_only && from_other_thread ? 2 : 1));
    }
  }
}

TEST_CASE("callback transport: rejects messages that need a copy function", "[unit][comm]") {
  std::atomic<int> destroyed = 0;
  ThreadGroup group(1);
  const muonrt_transport_t table = table_over(group.transport(0), destroyed);
  CallbackTransport t(read_transport(&table));
  int copied = 0;
  const CopyMessage copy = [&](void*, const void*, int64_t) { ++copied; };
  char from = 1, to = 0;
  const SendTo send{0, &from, 1};
  const ReceiveFrom receive{0, &to, 1};
  REQUIRE_THROWS_WITH(t.exchange({&send, 1}, {&receive, 1}, &copy), Contains("cannot reach"));
  CHECK((copied == 0 && to == 0));
}

TEST_CASE("callback transport: a reduction that fails does not change its result", "[unit][comm]") {
  muonrt_transport_t table = minimal();
  table.reduce_sum = [](void*, const int64_t* in, int64_t* out, int64_t n, int64_t, char*,
                        int64_t) -> muonrt_status_t {
    for (int64_t i = 0; i < n; ++i) out[i] = 10 * in[i];
    return n == 3 ? MUONRT_ERROR_COMM : MUONRT_OK;
  };
  table.reduce_max = [](void*, const float* in, float* out, int64_t n, int64_t, char*,
                        int64_t) -> muonrt_status_t {
    for (int64_t i = 0; i < n; ++i) out[i] = 10 * in[i];
    return n == 3 ? MUONRT_ERROR_COMM : MUONRT_OK;
  };
  const int64_t in[3] = {1, 2, 3};
  const float floats[3] = {1, 2, 3};
  int64_t sums[3] = {-1, -1, -1};
  float most[3] = {-1, -1, -1};
  {
    CallbackTransport t(read_transport(&table));
    t.reduce_sum(in, sums, 2);
    t.reduce_max(floats, most, 2);
    CHECK((sums[0] == 10 && sums[1] == 20 && sums[2] == -1));
    CHECK((most[0] == 10 && most[1] == 20 && most[2] == -1));
    CHECK_THROWS_AS(t.reduce_sum(in, sums, 3), Error);
    CHECK((sums[0] == 10 && sums[1] == 20 && sums[2] == -1));
  }
  CallbackTransport t(read_transport(&table));
  CHECK_THROWS_AS(t.reduce_max(floats, most, 3), Error);
  CHECK((most[0] == 10 && most[1] == 20 && most[2] == -1));
}

TEST_CASE("callback transport: converts what a function returns to a status and a text",
          "[unit][comm]") {
  struct Answer {
    muonrt_status_t status;
    bool fill;
  };
  const auto allgather_that = [](void* state, const void*, void*, int64_t, int64_t timeout_ms,
                                 char* message, int64_t capacity) -> muonrt_status_t {
    const auto* const answer = static_cast<const Answer*>(state);
    if (timeout_ms != 1234 || capacity < 256 || message[0] != 0) return MUONRT_ERROR_INTERNAL;
    if (answer->fill) std::memset(message, 'x', static_cast<size_t>(capacity));
    return answer->status;
  };
  const std::pair<muonrt_status_t, Status> cases[] = {
      {MUONRT_ERROR_TIMEOUT, Status::kTimeout},
      {MUONRT_ERROR_DEVICE, Status::kDevice},
      {MUONRT_SKIPPED, Status::kComm},
      {-7, Status::kComm},
      {12345, Status::kComm},
  };
  for (const auto& [status, expected] : cases) {
    for (const bool fill : {false, true}) {
      Answer answer{status, fill};
      muonrt_transport_t table = minimal();
      table.state = &answer;
      table.allgather = allgather_that;
      CallbackTransport t(read_transport(&table));
      t.set_timeout_ms(1234);
      char all[2];
      try {
        t.allgather("x", all, 1);
        FAIL("an error was ignored");
      } catch (const Error& e) {
        INFO(e.message());
        REQUIRE(e.status() == expected);
        REQUIRE_THAT(e.message(), Contains("allgather #0 on rank 0 (callback)"));
        REQUIRE_THAT(e.message(), Contains(fill ? "xxxx" : "gave no message"));
      }
    }
  }
}

TEST_CASE("transport table: an invalid table is rejected with the reason", "[unit][comm]") {
  muonrt_transport_init(nullptr);
  REQUIRE_THAT(rejection(nullptr), Contains("NULL"));

  muonrt_transport_t table;
  std::memset(static_cast<void*>(&table), 0xff, sizeof table);
  muonrt_transport_init(&table);
  REQUIRE((table.rank == -1 && table.size == 0 && !table.exchange && !table.allgather));
  table = minimal();
  REQUIRE(rejection(&table) == "accepted");
  for (const uint32_t size : {0u, 4u, static_cast<uint32_t>(sizeof table) - 1, 1u << 30}) {
    table = minimal();
    table.struct_size = size;
    REQUIRE_THAT(rejection(&table), Contains("struct_size"));
  }
  for (const auto& [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -4}}) {
    table = minimal();
    table.rank = rank;
    table.size = size;
    REQUIRE_THAT(rejection(&table), Contains("does not exist"));
  }
  const std::pair<const char*, void (*)(muonrt_transport_t&)> bad[] = {
      {"caller_thread_only is 2", [](muonrt_transport_t& t) { t.caller_thread_only = 2; }},
      {"exchange is NULL", [](muonrt_transport_t& t) { t.exchange = nullptr; }},
      {"allgather is NULL", [](muonrt_transport_t& t) { t.allgather = nullptr; }}};
  for (const auto& [text, change] : bad) {
    table = minimal();
    change(table);
    REQUIRE_THAT(rejection(&table), Contains(text));
  }
}

TEST_CASE("transport table: a larger one is accepted if its unknown fields are zero",
          "[unit][comm]") {
  struct Newer {
    muonrt_transport_t known;
    void* unknown;
  } newer{minimal(), nullptr};
  newer.known.struct_size = sizeof newer;
  REQUIRE(rejection(&newer.known) == "accepted");
  newer.unknown = &newer;
  REQUIRE_THAT(rejection(&newer.known), Contains("does not know"));
}

TEST_CASE("transport table: an older one has no get_published_error", "[unit][comm]") {
  muonrt_transport_t table = minimal();
  std::memset(reinterpret_cast<void*>(&table.get_published_error), 0xff,
              sizeof table.get_published_error);
  table.struct_size = offsetof(muonrt_transport_t, get_published_error);
  CHECK_FALSE(read_transport(&table).get_published_error);
}
