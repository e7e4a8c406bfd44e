#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "mpi/harness.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace mpi_test;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 60'000, kShort = 200;

std::string receive_from(Transport& t, int peer) {
  char byte = 0;
  const ReceiveFrom receive{peer, &byte, 1};
  return attempt([&] { t.exchange({}, {&receive, 1}); });
}

std::string unless_contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return "";
  return cat("'", text, "' does not contain '", part, "'");
}

/// A failed transport leaves nothing behind that a new one stumbles over.
void require_fresh_start() {
  const auto t = connect();
  std::string problems;
  const std::string thrown =
      attempt([&] { problems = check_sparse_sequence(*t, 20, 1) + check_allgather(*t, 100, 1); });
  REQUIRE(on_all(problems + thrown) == "");
}

}  // namespace

TEST_CASE("mpi abort: ends the waits of every rank with one status and text", "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  barrier();
  std::string error;
  if (rank() == 0) {
    t->abort(Status::kDevice, "the device fell off");
    error = receive_from(*t, 1);
  } else {
    error = receive_from(*t, 0);
  }
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_DEVICE")) == "");
  REQUIRE(on_all(unless_contains(error, "the device fell off")) == "");
  REQUIRE(on_all(rank() == 0 ? "" : unless_contains(error, "rank 0 reported: ")) == "");
  const std::string later = receive_from(*t, 0);
  REQUIRE(on_all(later == error ? "" : cat("then: ", later)) == "");
  require_fresh_start();
}

TEST_CASE("mpi abort: another thread ends the wait of its own rank and of those in a collective",
          "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  barrier();
  std::string error;
  if (rank() == 0) {
    std::thread foreign([&] { t->abort(Status::kAborted, "from beside"); });
    error = receive_from(*t, 1);
    foreign.join();
  } else {
    const int64_t one = 1;
    int64_t sum = 0;
    error = attempt([&] { t->reduce_sum(&one, &sum, 1); });
  }
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_ABORTED")) == "");
  REQUIRE(on_all(unless_contains(error, "from beside")) == "");
  require_fresh_start();
}

TEST_CASE("mpi abort: another thread's, which came before the operation, reaches the peers",
          "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  barrier();
  if (rank() == 0) std::thread([&] { t->abort(Status::kAborted, "from beside"); }).join();
  const std::string error = receive_from(*t, rank() == 0 ? 1 : 0);
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_ABORTED")) == "");
  require_fresh_start();
}

TEST_CASE("mpi timeout: names the peers that are missing, and ends the others too", "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  if (rank() == 0) t->set_timeout_ms(kShort);
  barrier();
  const int last = size() - 1;
  std::string error;
  if (rank() == 0) {
    error = receive_from(*t, last);
    REQUIRE_THAT(error, Catch::Contains("exchange #0 of rank 0 (mpi)"));
    REQUIRE_THAT(error, Catch::Contains(cat("no message from rank [", last, "]")));
  } else {
    error = receive_from(*t, 0);
  }
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  require_fresh_start();
}

TEST_CASE("mpi timeout: who comes late finds the error, though its peers' messages are there too",
          "[mpi][comm]") {
  if (size() < 2) return;
  for (const bool collective : {true, false}) {
    const auto t = connect(kLong);
    if (rank() == 0) t->set_timeout_ms(kShort);
    barrier();
    if (rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(4 * kShort));
    std::vector<char> out(static_cast<size_t>(size())), in(out.size());
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
    for (int peer = rank() == 0 ? 1 : 0; peer < (rank() == 0 ? size() : 1); ++peer) {
      sends.push_back({peer, &out[static_cast<size_t>(peer)], 1});
      receives.push_back({peer, &in[static_cast<size_t>(peer)], 1});
    }
    const std::string error = attempt([&] {
      if (collective) {
        t->allgather(out.data(), in.data(), 1);
      } else {
        t->exchange(sends, receives);
      }
    });
    REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  }
  require_fresh_start();
}

TEST_CASE("mpi timeout: a collective that one rank does not join ends on the others",
          "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  t->set_timeout_ms(kShort);
  const int64_t one = 1;
  int64_t sum = 0;
  std::string error = "MUONRT_ERROR_TIMEOUT";
  if (rank() != 0) error = attempt([&] { t->reduce_sum(&one, &sum, 1); });
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  require_fresh_start();
}

TEST_CASE("mpi abort: is told between operations, where any thread may call MPI", "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  std::string problem;
  if (t->published()) problem = "an error before there was one";
  barrier();
  if (rank() == size() - 1) t->abort(Status::kAborted, "enough");
  if (thread_level() == MPI_THREAD_MULTIPLE && rank() != size() - 1) {
    std::thread watch([&] {
      while (!t->published()) std::this_thread::yield();
      problem += unless_contains(t->published()->message(), "enough");
    });
    watch.join();
  }
  const std::string error = receive_from(*t, rank() == 0 ? 1 : 0);
  REQUIRE(on_all(problem + unless_contains(error, "enough")) == "");
  require_fresh_start();
}

TEST_CASE("mpi mismatch: sizes that differ end all ranks and write nothing out of bounds",
          "[mpi][comm]") {
  if (size() < 2) return;
  for (const auto& [sent, expected] :
       {std::pair<int64_t, int64_t>{64, 16}, {16, 64}, {200'000, 100'000}}) {
    const auto t = connect(kLong);
    std::vector<char> out(static_cast<size_t>(sent), 'x');
    std::vector<char> in(static_cast<size_t>(std::max(sent, expected)) + 64, 'g');
    std::string error;
    if (rank() == 0) {
      // The sender finds out by the receiver's report: it waits for a message that never comes.
      const SendTo send{1, out.data(), sent};
      const ReceiveFrom never{1, in.data(), 1};
      error = attempt([&] { t->exchange({&send, 1}, {&never, 1}); });
    } else if (rank() == 1) {
      const ReceiveFrom receive{0, in.data(), expected};
      error = attempt([&] { t->exchange({}, {&receive, 1}); });
    } else {
      error = receive_from(*t, 0);
    }
    const auto untouched = std::count(in.begin() + expected, in.end(), 'g');
    REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_MISMATCH")) == "");
    REQUIRE(on_all(unless_contains(error, "rank 0 sends ")) == "");
    REQUIRE(on_all(unless_contains(error, cat(expected))) == "");
    REQUIRE(on_all(rank() != 1 || untouched == in.end() - in.begin() - expected
                       ? ""
                       : "written beside the message") == "");
  }
  require_fresh_start();
}

TEST_CASE("mpi faults: a bad message of one rank is every rank's error", "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  std::string error;
  if (rank() == 1) {
    char byte = 0;
    const SendTo bad{size(), &byte, 1};
    error = attempt([&] { t->exchange({&bad, 1}, {}); });
  } else {
    error = receive_from(*t, 1);
  }
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_INVALID_ARGUMENT")) == "");
  REQUIRE(on_all(unless_contains(error, "does not exist")) == "");
  require_fresh_start();
}

TEST_CASE("mpi faults: buffers are free after a failure in the middle of big messages",
          "[mpi][comm]") {
  if (size() < 2) return;
  for (int turn = 0; turn < 3; ++turn) {
    const auto t = connect(kLong);
    if (rank() == 0) t->set_timeout_ms(kShort);
    constexpr int64_t kBytes = 4 << 20;
    std::string error;
    if (rank() < 2) {
      auto out = std::make_unique<std::vector<char>>(static_cast<size_t>(kBytes), 'o');
      auto in = std::make_unique<std::vector<char>>(static_cast<size_t>(2 * kBytes), 'i');
      const int peer = 1 - rank();
      // Each of the two expects from a third what never comes, or from itself's peer only.
      std::vector<ReceiveFrom> receives{{peer, in->data(), kBytes}};
      if (size() > 2) receives.push_back({2, in->data() + kBytes, kBytes});
      const SendTo send{peer, out->data(), kBytes};
      const std::span<const SendTo> sends(&send, rank() == 0 || size() > 2 ? 1 : 0);
      error = attempt([&] { t->exchange(sends, receives); });
      std::fill(out->begin(), out->end(), '?');
      out.reset();
      in.reset();
    } else {
      error = receive_from(*t, 0);
    }
    // With two ranks, rank 0 waits in vain and rank 1 has all it wants.
    if (size() == 2 && rank() == 1) error = receive_from(*t, 0);
    REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  }
  require_fresh_start();
}

TEST_CASE("mpi faults: a send's buffer is free after a deadline in the middle of it",
          "[mpi][comm]") {
  if (size() < 2) return;
  // Longer on its way than the deadline of the one that sends it, by far.
  constexpr int64_t kBytes = 16 << 20, kTooShort = 1;
  for (int turn = 0; turn < 3; ++turn) {
    const auto t = connect(kLong);
    std::string error;
    if (rank() == 0) {
      t->set_timeout_ms(kTooShort);
      auto out = std::make_unique<std::vector<char>>(static_cast<size_t>(kBytes), 'o');
      const SendTo send{1, out->data(), kBytes};
      char never = 0;
      const ReceiveFrom receive{1, &never, 1};
      barrier();
      error = attempt([&] { t->exchange({&send, 1}, {&receive, 1}); });
      out.reset();
    } else {
      std::vector<char> in(static_cast<size_t>(kBytes));
      const ReceiveFrom receive{0, in.data(), kBytes};
      barrier();
      if (rank() == 1) error = attempt([&] { t->exchange({}, {&receive, 1}); });
      if (error.empty()) error = receive_from(*t, 0);
    }
    REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  }
  require_fresh_start();
}
