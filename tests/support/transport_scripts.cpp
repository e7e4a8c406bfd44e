#include "support/transport_scripts.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <thread>

#include "base/text.hpp"
#include "support/transport_checks.hpp"

namespace transport_test {

using namespace muonrt;

namespace {

constexpr int64_t kLong = 60'000, kShort = 50;

// ---- Bytes and values

std::string all_patterns(Transport& t) {
  std::string problems;
  int64_t index = 0;
  for (const Pattern& pattern : patterns())
    for (int turn = 0; turn < 3; ++turn)
      problems += check_exchange(t, pattern, Catch::rngSeed(), index++);
  return problems;
}

std::string sparse_sequence(Transport& t) { return check_sparse_sequence(t, 60, Catch::rngSeed()); }

std::string long_messages(Transport& t) {
  static const Pattern some = {"long", [](int from, int to, int) -> int64_t {
                                 return from == to ? 5 : 150'000 + 100 * from + to;
                               }};
  static const Pattern one = {"one that is long", [](int from, int to, int) -> int64_t {
                                return from == 0 && to == 1 ? (int64_t{8} << 20) + 3 : 5;
                              }};
  return check_exchange(t, some, 1, 0) + check_exchange(t, one, 1, 1);
}

std::string collectives(Transport& t) {
  std::string problems;
  for (const int64_t bytes : {1, 8, 1000, 2501}) problems += check_allgather(t, bytes, 5);
  for (const int64_t n : {1, 6, 61}) problems += check_reductions(t, n, 6);
  t.allgather(nullptr, nullptr, 0);
  t.reduce_max(nullptr, nullptr, 0);
  t.reduce_sum(nullptr, nullptr, 0);
  return problems;
}

/// Checks that messages of a duplicate and of its parent do not mix. If the transport permits
/// several threads, uses both at the same time.
std::string duplicates(Transport& parent) {
  const auto first = parent.duplicate();
  const auto second = first->duplicate();
  std::string others, mine;
  const auto work = [&] {
    try {
      others = check_sparse_sequence(*second, 40, 1);
    } catch (const Error& error) {
      others = error.message();
    }
  };
  if (parent.caller_thread_only()) {
    work();
    mine = check_sparse_sequence(*first, 40, 2);
  } else {
    std::thread beside(work);
    mine = check_sparse_sequence(*first, 40, 2);
    beside.join();
  }
  if (first->timeout_ms() != parent.timeout_ms()) mine += "a duplicate has another timeout; ";
  return mine + others + check_sparse_sequence(parent, 10, 3);
}

// ---- Errors

template <class Work>
std::optional<Error> error_from(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Waits for a byte from a peer that sends nothing, and returns the error.
std::optional<Error> error_of_waiting_for(Transport& t, int peer) {
  char byte = 0;
  const ReceiveFrom receive{peer, &byte, 1};
  return error_from([&] { t.exchange({}, {&receive, 1}); });
}

std::optional<Error> error_of_a_sum(Transport& t) {
  const int64_t one = 1;
  int64_t sum = 0;
  return error_from([&] { t.reduce_sum(&one, &sum, 1); });
}

/// Returns "" if `error` has this status and its message contains all of the words, and otherwise a
/// description.
std::string unlike(const std::optional<Error>& error, Status status,
                   const std::vector<std::string>& words) {
  if (!error) return "no error; ";
  bool right = error->status() == status;
  for (const std::string& word : words) right = right && error->message().find(word) != word.npos;
  return right ? "" : cat(status_name(error->status()), ": '", error->message(), "'; ");
}

std::string abort_by_a_rank(Transport& t) {
  if (t.rank() == 0) t.abort(Status::kDevice, "the device fell off");
  const auto error = error_of_waiting_for(t, (t.rank() + 1) % t.size());
  std::string problems = unlike(error, Status::kDevice, {"the device fell off"});
  if (t.rank() != 0) problems += unlike(error, Status::kDevice, {"rank 0 reported: "});
  // All later operations return the first error.
  t.abort(Status::kIo, "another one");
  return problems +
         unlike(error_of_waiting_for(t, 0), Status::kDevice, {error ? error->message() : ""});
}

/// The last rank does not call the collective in which the other ranks wait. A second thread of
/// rank 0 aborts the transport.
std::string abort_by_another_thread(Transport& t) {
  if (t.rank() == t.size() - 1) return "";
  std::thread foreign;
  if (t.rank() == 0) {
    foreign = std::thread([&] { t.abort(Status::kAborted, "from another thread"); });
  }
  const auto error = error_of_a_sum(t);
  if (foreign.joinable()) foreign.join();
  return unlike(error, Status::kAborted, {"from another thread"});
}

/// The last rank aborts after it has received a byte from rank 0. Rank 0 may receive the error in
/// the same exchange.
std::string published_between_operations(Transport& t) {
  std::string problems;
  const int last = t.size() - 1;
  char byte = 0;
  if (t.rank() == 0) {
    if (t.published_error()) problems = "an error before there was one; ";
    const SendTo send{last, &byte, 1};
    error_from([&] { t.exchange({&send, 1}, {}); });
  }
  if (t.rank() == last) {
    const ReceiveFrom receive{0, &byte, 1};
    t.exchange({}, {&receive, 1});
    t.abort(Status::kAborted, "enough");
  } else if (!t.caller_thread_only()) {
    while (!t.published_error() && !t.error()) std::this_thread::yield();
  }
  const auto error =
      t.published_error() ? t.published_error() : error_of_waiting_for(t, t.rank() ? 0 : 1);
  return problems + unlike(error, Status::kAborted, {"enough"});
}

std::string parent_that_ends(Transport& parent) {
  const auto duplicate = parent.duplicate();
  std::string problems = check_allgather(*duplicate, 1, 1);
  if (parent.rank() == 1) parent.abort(Status::kDevice, "gone");
  problems += check_sparse_sequence(*duplicate, 20, 1);
  return problems + check_allgather(*duplicate, 4, 1);
}

/// Rank 0 waits with a short timeout for a message that is never sent. The other ranks have a
/// longer timeout, so they must return the error of rank 0.
std::string timeout_of_an_exchange(Transport& t) {
  const int last = t.size() - 1;
  t.set_timeout_ms(t.rank() == 0 ? kShort : kLong);
  const auto error = error_of_waiting_for(t, t.rank() == 0 ? last : 0);
  if (t.rank() != 0) return unlike(error, Status::kTimeout, {});
  return unlike(error, Status::kTimeout, {"exchange #0 on rank 0", "no message from rank"});
}

/// Rank 0 does not take part in the collective.
std::string timeout_of_a_collective(Transport& t) {
  t.set_timeout_ms(kShort);
  return t.rank() == 0 ? "" : unlike(error_of_a_sum(t), Status::kTimeout, {});
}

/// Checks that the error names the expected size. Over MPI, the error names the size of the last
/// part of the message.
std::string other_size(Transport& t, int64_t sent, int64_t expected) {
  const std::vector<char> out(static_cast<size_t>(sent), 'x');
  std::vector<char> in(static_cast<size_t>(std::max(sent, expected)) + 64, 'g');
  std::optional<Error> error;
  if (t.rank() == 0) {
    // The receiver reports the error. The sender would wait forever, because it also waits for a
    // message that is never sent.
    const SendTo send{1, out.data(), sent};
    const ReceiveFrom never{1, in.data(), 1};
    error = error_from([&] { t.exchange({&send, 1}, {&never, 1}); });
  } else if (t.rank() == 1) {
    const ReceiveFrom receive{0, in.data(), expected};
    error = error_from([&] { t.exchange({}, {&receive, 1}); });
  } else {
    error = error_of_waiting_for(t, 0);
  }
  const bool beyond = t.rank() == 1 && std::count(in.begin() + expected, in.end(), 'g') !=
                                           in.end() - in.begin() - expected;
  return unlike(error, Status::kMismatch, {"rank 0", cat(expected % 1000)}) +
         (beyond ? "bytes after the message; " : "");
}
std::string longer_than_expected(Transport& t) { return other_size(t, 64, 16); }
std::string shorter_than_expected(Transport& t) { return other_size(t, 16, 64); }
std::string longer_in_parts(Transport& t) { return other_size(t, 200'000, 100'050); }

std::string message_to_no_rank(Transport& t) {
  char byte = 0;
  const SendTo bad{t.size(), &byte, 1};
  const auto error = t.rank() == 1 ? error_from([&] {
    t.exchange({&bad, 1}, {});
  })
                                   : error_of_waiting_for(t, 1);
  return unlike(error, Status::kInvalidArgument, {"does not exist"});
}

}  // namespace

const std::vector<Script>& scripts() {
  static const std::vector<Script> all = {
      {"every byte of every pattern arrives", 1, all_patterns},
      {"pairs that meet in a sparse sequence meet in order", 1, sparse_sequence},
      {"long messages arrive whole", 1, long_messages},
      {"allgather and reductions give every rank the stated values", 1, collectives},
      {"a duplicate is a separate channel", 1, duplicates},
      {"an abort ends the waits of all ranks with one status and text", 2, abort_by_a_rank},
      {"another thread's abort ends waits and collectives", 2, abort_by_another_thread},
      {"a peer's error is known between operations", 2, published_between_operations},
      {"a duplicate outlives its parent's error", 2, parent_that_ends},
      {"a timeout names the missing peer and ends the other ranks", 2, timeout_of_an_exchange},
      {"a collective that a rank does not join ends on the others", 2, timeout_of_a_collective},
      {"a message that is too long is every rank's error", 2, longer_than_expected},
      {"a message that is too short is every rank's error", 2, shorter_than_expected},
      {"a message of several parts that is too long is every rank's error", 2, longer_in_parts},
      {"a message to no rank is every rank's error", 2, message_to_no_rank}};
  return all;
}

std::string problem_of(const Script& script, Transport& transport) {
  try {
    return script.run(transport);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace transport_test
