#include "optimizer/agreement.hpp"

#include <atomic>
#include <catch2/catch.hpp>

#include "comm/host_comm.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int kRanks = 4;

struct Compared {
  std::vector<std::optional<Error>> errors;
  int64_t bytes = 0;
};

/// Runs require_equal() on every rank with the table that `table(rank)` returns. Returns the
/// errors, and the number of bytes that all ranks have sent.
Compared compare(const std::function<AgreementTable(int rank)>& table) {
  std::atomic<int64_t> bytes = 0;
  ThreadFaults count;
  count.before_delivery = [&](const ThreadMessage& m) { bytes += m.bytes; };
  ThreadGroup group(kRanks, count);
  Compared out;
  out.errors = on_ranks(kRanks, [&](int rank) {
    HostComm comm(group.transport(rank));
    table(rank).require_equal(comm);
  });
  out.bytes = bytes;
  return out;
}

AgreementTable make_table(int64_t n, int64_t changed, const std::string& value) {
  AgreementTable out;
  for (int64_t i = 0; i < n; ++i)
    out.add(cat("param 'layers.", i, "': shape"), i == changed ? value : "[4096, 4096]");
  return out;
}

void check_errors(const Compared& got, const std::string& text) {
  for (const auto& error : got.errors) {
    REQUIRE(error);
    CHECK(error->status() == Status::kMismatch);
    CHECK(error->message() == "ranks disagree: " + text + "; pass the same value on every rank");
  }
}

}  // namespace

TEST_CASE("agreement: the first entry that differs is named, the same on every rank",
          "[unit][optimizer]") {
  for (const int64_t n : {1, 2, 3, 8, 1000}) {
    for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
      CAPTURE(n, at);
      const auto got =
          compare([&](int rank) { return make_table(n, rank >= 2 ? at : -1, "[1, 2]"); });
      check_errors(got, cat("param 'layers.", at,
                            "': shape is [4096, 4096] on rank 0 and [1, 2] on ", "rank 2"));
    }
  }
  CHECK(text_of(compare([](int) { return make_table(100, -1, ""); }).errors).empty());
}

TEST_CASE("agreement: a shorter table differs where it ends", "[unit][optimizer]") {
  for (const int64_t shorter : {0, 1, 7, 99}) {
    const auto got =
        compare([&](int rank) { return make_table(rank == 3 ? shorter : 100, -1, ""); });
    check_errors(got,
                 cat("param 'layers.", shorter,
                     "': shape is [4096, 4096] on rank 0 and end of the list absent on rank 3"));
  }
}

TEST_CASE("agreement: ranks send only a few KiB of long tables", "[unit][optimizer]") {
  const int64_t n = 50000;  // the table has about 2 MB
  const auto got = compare([&](int rank) { return make_table(n, rank, cat("[", rank, "]")); });
  check_errors(got, "param 'layers.0': shape is [0] on rank 0 and [4096, 4096] on rank 1");
  CHECK(got.bytes < kRanks * kRanks * 5000);
}

TEST_CASE("agreement: a long name is shortened, but field and value are complete",
          "[unit][optimizer]") {
  const std::string name(2000, 'n');
  const std::string shown = "param '" + std::string(100, 'n') + "...' (2000 bytes): shape";
  const auto got = compare([&](int rank) {
    AgreementTable out;
    out.add(cat("param '", name, "': shape"), cat("[", rank, "]"));
    return out;
  });
  check_errors(got, shown + " is [0] on rank 0 and [1] on rank 1");
  ThreadGroup group(2);
  const auto errors = on_ranks(2, [&](int rank) {
    HostComm comm(group.transport(rank));
    run_collectively(comm, [&] {
      MUONRT_REQUIRE(rank == 0, kInvalidArg, "param '", name,
                     "': shape is [-1] (negative); correct it");
    });
  });
  for (const auto& error : errors)
    CHECK(error->message() == "rank 1: " + shown + " is [-1] (negative); correct it");
}
