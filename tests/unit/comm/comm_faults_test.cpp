#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "base/text.hpp"
#include "comm/thread_transport.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;
using Catch::Contains;

namespace {

constexpr int64_t kLong = 60'000, kShort = 150;

Status status_of(const std::optional<Error>& error) {
  return error ? error->status() : Status::kOk;
}

void ring(Transport& t, int64_t bytes = 8) {
  std::vector<char> out(static_cast<size_t>(bytes)), in(static_cast<size_t>(bytes));
  const SendTo send{(t.rank() + 1) % t.size(), out.data(), bytes};
  const ReceiveFrom receive{(t.rank() + t.size() - 1) % t.size(), in.data(), bytes};
  t.exchange({&send, 1}, {&receive, 1});
}

}  // namespace

TEST_CASE("abort: the first error counts, and a status that is not an error becomes ABORTED",
          "[unit][comm]") {
  ThreadGroup group(2);
  const auto a = group.transport(0), b = group.transport(1);
  a->abort(Status::kOk, "first");
  a->abort(Status::kDevice, "second");
  b->abort(Status::kDevice, "third");
  char in = 0;
  const ReceiveFrom receive{1, &in, 1};
  REQUIRE(a->error()->status() == Status::kAborted);
  REQUIRE(a->error()->message() == "first");
  try {
    a->exchange({}, {&receive, 1});
    FAIL("an aborted transport continued");
  } catch (const Error& e) {
    REQUIRE(e.message() == "first");
  }
}

TEST_CASE("timeout: the message names operation, rank, missing peers and the last operations",
          "[unit][comm][tsan]") {
  ThreadFaults faults;
  faults.kills.push_back({.rank = 2, .kind = OperationKind::kExchange, .ordinal = 1});
  ThreadGroup group(3, faults);
  const auto errors = on_group(group, kShort, [](Transport& t) {
    require_none(check_allgather(t, 3, 1));
    for (int64_t k = 0; k < 2; ++k) {
      if (t.rank() == 0 || t.rank() == 2) t.set_timeout_ms(kShort);
      if (t.rank() == 1) t.set_timeout_ms(kLong);
      require_none(check_exchange(t, patterns()[0], 1, k));
    }
  });
  INFO(text_of(errors));
  REQUIRE(status_of(errors[0]) == Status::kTimeout);
  REQUIRE_THAT(errors[0]->message(), Contains("exchange #2 on rank 0 (thread)"));
  REQUIRE_THAT(errors[0]->message(), Contains("no message from rank 2"));
  REQUIRE_THAT(errors[0]->message(), Contains("rank 2 did not receive a message of this rank"));
  REQUIRE_THAT(errors[0]->message(), Contains("#0 allgather done in"));
  REQUIRE_THAT(errors[0]->message(), Contains("#1 exchange done in"));
  REQUIRE_THAT(errors[0]->message(), Contains("(3 out 192 B, 3 in 192 B)"));
  REQUIRE_THAT(errors[0]->message(), Contains("#2 exchange failed after"));
  // Rank 1 has a long timeout, so its error is the one that rank 0 has published.
  REQUIRE(status_of(errors[1]) == Status::kTimeout);
  REQUIRE_THAT(errors[1]->message(), Contains("rank 0 reported: exchange #2 on rank 0"));
  REQUIRE((errors[1]->is_remote() && !errors[0]->is_remote()));
  REQUIRE(errors[1]->rank() == 0);
  REQUIRE(status_of(errors[2]) == Status::kComm);
  REQUIRE_THAT(errors[2]->message(), Contains("killed"));
}

TEST_CASE("timeout: it must be between one millisecond and 366 days", "[unit][comm]") {
  ThreadGroup group(1);
  const auto t = group.transport(0);
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    REQUIRE_THROWS_AS(t->set_timeout_ms(bad), Error);
  }
  REQUIRE(t->timeout_ms() == Transport::kDefaultTimeoutMs);
}

TEST_CASE("mismatch: an error names the operations if the ranks are in different ones",
          "[unit][comm]") {
  ThreadGroup group(2);
  const auto errors = on_group(group, kLong, [](Transport& t) {
    char all[2];
    t.rank() == 0 ? t.allgather("x", all, 1) : ring(t, 1);
  });
  INFO(text_of(errors));
  for (const auto& error : errors) {
    REQUIRE(status_of(error) == Status::kMismatch);
    REQUIRE_THAT(error->message(), Contains("in exchange #0") && Contains("in allgather #0"));
  }
}

TEST_CASE("invalid messages: their rank rejects them, and the peers get the error",
          "[unit][comm]") {
  char a[8] = {}, b[8] = {};
  struct Case {
    const char* text;
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
  };
  const Case cases[] = {
      {"message to rank 2 is invalid because rank 2 does not exist", {{2, a, 1}}, {}},
      {"message from rank -1 is invalid because rank -1 does not exist", {}, {{-1, a, 1}}},
      {"there is a second message to rank 1", {{1, a, 1}, {1, b, 1}}, {}},
      {"there is a second message from rank 1", {}, {{1, a, 1}, {1, b, 1}}},
      {"has 0 bytes", {{1, a, 0}}, {}},
      {"has -5 bytes", {}, {{1, a, -5}}},
      {"the address NULL", {{1, nullptr, 4}}, {}},
      {"sends 3 bytes to itself and expects 4", {{0, a, 3}}, {{0, b, 4}}},
      {"sends 3 bytes to itself and expects 0", {{0, a, 3}}, {}},
      // The sum of the sizes does not fit into 64 bits.
      {"sends 9223372036854775807 bytes to itself and expects 8",
       {{1, a, INT64_MAX}, {0, a, INT64_MAX}},
       {{1, b, INT64_MAX}, {0, b, 8}}},
  };
  for (const Case& c : cases) {
    ThreadGroup group(2);
    const auto errors = on_group(group, kLong, [&](Transport& t) {
      t.rank() == 0 ? t.exchange(c.sends, c.receives) : ring(t);
    });
    INFO(c.text << "\n" << text_of(errors));
    const bool mismatch = std::strstr(c.text, "itself") != nullptr;
    for (const auto& error : errors) {
      REQUIRE(status_of(error) == (mismatch ? Status::kMismatch : Status::kInvalidArgument));
      REQUIRE_THAT(error->message(), Contains(c.text));
    }
  }
  REQUIRE_THROWS_AS(ThreadGroup(0), Error);
  int64_t sum = 0;
  float most = 0;
  const std::function<void(Transport&)> huge[] = {
      [&](Transport& t) { t.allgather(a, b, INT64_MAX); },
      [&](Transport& t) { t.reduce_sum(&sum, &sum, INT64_MAX); },
      [&](Transport& t) { t.reduce_max(&most, &most, INT64_MAX); }};
  for (const auto& call : huge)
    REQUIRE_THROWS_WITH(
        call(*ThreadGroup(2).transport(0)),
        Contains(" is 9223372036854775807, but must be at most ") && Contains("#0 on rank 0"));
}

TEST_CASE("faults: a planted error is published, and a killed rank sends nothing on every channel",
          "[unit][comm][tsan]") {
  for (const bool forever : {false, true}) {
    ThreadFaults faults;
    faults.kills.push_back({.rank = 1,
                            .kind = OperationKind::kReduceSum,
                            .ordinal = 2,
                            .forever = forever,
                            .channel = 1});
    ThreadGroup group(3, faults);
    std::atomic<int> reached = 0;
    const auto errors = on_group(group, kLong, [&](Transport& parent) {
      const auto t = parent.duplicate();
      t->set_timeout_ms(kShort);
      parent.set_timeout_ms(kShort);
      int64_t one = 1, sum = 0;
      for (int k = 0; k < 3; ++k) {
        parent.reduce_sum(&one, &sum, 1);  // the fault is on a different channel
        reached += k;
      }
      for (int k = 0; k < 2; ++k) t->reduce_sum(&one, &sum, 1);
      try {
        t->reduce_sum(&one, &sum, 1);
      } catch (...) {
        if (parent.rank() != 1) throw;
        ring(parent);  // if the rank is killed, this must also fail
        throw;
      }
    });
    INFO("forever " << forever << "\n" << text_of(errors));
    REQUIRE(reached == 9);
    for (const size_t rank : {0, 2}) {
      REQUIRE(status_of(errors[rank]) == (forever ? Status::kTimeout : Status::kComm));
      REQUIRE_THAT(errors[rank]->message(),
                   Contains(forever ? "no message from rank 1" : "rank 1 reported: reduce_sum #2"));
    }
    if (forever) {
      REQUIRE(status_of(errors[1]) == Status::kComm);
      REQUIRE_THAT(errors[1]->message(), Contains("exchange #") && Contains("killed"));
    }
  }
}

TEST_CASE("flight recorder: keeps the last 64 operations, oldest first", "[unit][comm]") {
  FlightRecorder recorder;
  REQUIRE(recorder.text() == "");
  for (int64_t i = 0; i < 70; ++i) {
    recorder.begin({OperationKind::kReduceMax, i, i}, {1, 2, 30, 40});
    if (i < 69) recorder.end(i == 68);
  }
  const std::string all = recorder.text();
  REQUIRE_THAT(all, Catch::Matchers::StartsWith("#6 reduce_max done in "));
  REQUIRE_THAT(all, !Contains("#5 "));
  REQUIRE(std::count(all.begin(), all.end(), '#') == 64);
  const std::string last = recorder.text(2);
  REQUIRE_THAT(last, Catch::Matchers::StartsWith("#68 reduce_max failed after "));
  REQUIRE_THAT(last, Contains("; #69 reduce_max running since "));
  REQUIRE_THAT(last, Catch::Matchers::EndsWith("(1 out 30 B, 2 in 40 B)"));
}
