#include "comm/folder_post.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "comm/post_transport.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;

FolderMeeting meeting(const loopback::Folder& folder, int rank, int size) {
  return {rank, size, folder.path(), "run-1", 100};
}

std::unique_ptr<Transport> meet(const FolderMeeting& m, int64_t timeout_ms = kLong) {
  auto out = make_post_transport(make_folder_post(m, timeout_ms));
  out->set_timeout_ms(timeout_ms);
  return out;
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

bool is_there(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0;
}

}  // namespace

TEST_CASE("folder: every byte of every pattern arrives, and nothing is left behind",
          "[unit][comm][folder]") {
  for (const int size : {1, 2, 4}) {
    const loopback::Folder folder;
    const auto errors = on_ranks(size, [&](int rank) {
      const auto t = meet(meeting(folder, rank, size));
      int64_t index = 0;
      for (const Pattern& pattern : patterns())
        require_none(check_exchange(*t, pattern, 7, index++));
      require_none(check_reductions(*t, 13, 4));
      const auto twin = t->duplicate();
      require_none(check_sparse_sequence(*twin, 20, 5));
      require_none(check_allgather(*t, 100, 3));
    });
    REQUIRE(text_of(errors) == "");
    CHECK_FALSE(is_there(folder.path() + "/run-1"));
  }
}

TEST_CASE("folder: files of an earlier run are refused, and another id is another run",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  // An earlier run that ended before its time: the cards and the answer are there.
  const auto earlier = on_ranks(2, [&](int rank) {
    const auto t = make_folder_post(meeting(folder, rank, 2), kLong);
    std::ofstream(folder.path() + "/run-1/keeps-the-folder");
    static_cast<void>(t->name());
    throw Error(Status::kAborted, "ended");
  });
  REQUIRE(says(earlier[0], Status::kAborted, "ended"));
  mkdir((folder.path() + "/run-1").c_str(), 0700);
  std::ofstream(folder.path() + "/run-1/card.1") << "old";
  std::vector<Card> cards;
  for (const int rank : {0, 1, 2}) cards.push_back(make_card(meeting(folder, rank, 3)));
  std::ofstream(folder.path() + "/run-1/answer")
      << make_answer(meeting(folder, 0, 3), cards, Status::kOk, "");
  const auto again = on_ranks(3, [&](int rank) { meet(meeting(folder, rank, 3), 300); });
  CHECK(says(again[0], Status::kInvalidState, "is there already (an earlier run"));
  CHECK(says(again[1], Status::kInvalidState, "has a rank 1 already"));
  CHECK(says(again[2], Status::kInvalidState, "the answer of an earlier run"));
  const auto fresh = on_ranks(2, [&](int rank) {
    FolderMeeting m = meeting(folder, rank, 2);
    m.run_id = "run-2";
    require_none(check_allgather(*meet(m), 10, 1));
  });
  CHECK(text_of(fresh) == "");
}

TEST_CASE("folder: what the ranks do not agree on is said to all of them", "[unit][comm][folder]") {
  const auto with_rank_1 = [](const std::function<void(FolderMeeting&)>& change) {
    const loopback::Folder folder;
    return on_ranks(2, [&](int rank) {
      FolderMeeting m = meeting(folder, rank, 2);
      if (rank == 1) change(m);
      meet(m, kLong);
    });
  };
  const auto size = with_rank_1([](FolderMeeting& m) { m.size = 3; });
  const auto version = with_rank_1([](FolderMeeting& m) { m.version = 7; });
  for (const size_t r : {size_t{0}, size_t{1}}) {
    CHECK(says(size[r], Status::kMismatch, "rank 1 believes in 3 ranks, rank 0 in 2"));
    CHECK(says(version[r], Status::kMismatch, "rank 1 runs version 7 of muonrt, rank 0 100"));
  }
}

TEST_CASE("folder: missing ranks, missing folders and bad ids are named", "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto error = [&](FolderMeeting m) { return on_ranks(1, [&](int) { meet(m, 200); })[0]; };
  CHECK(says(error(meeting(folder, 0, 3)), Status::kTimeout, "ranks 1, 2 of 3 did not come"));
  FolderMeeting m = meeting(folder, 1, 3);
  m.run_id = "never";
  CHECK(says(error(m), Status::kTimeout, "rank 0 did not make"));
  for (const char* id : {"", "a/b", "..", "with space"}) {
    m.run_id = id;
    CHECK(says(error(m), Status::kInvalidArgument, "run id"));
  }
  m = meeting(folder, 0, 2);
  m.path += "/nowhere";
  CHECK(says(error(m), Status::kIo, "cannot be made"));
}

TEST_CASE("folder: a rank's error and its end reach the others", "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto errors = on_ranks(3, [&](int rank) {
    const auto t = meet(meeting(folder, rank, 3));
    if (rank == 2) return t->abort(Status::kAborted, "enough");
    while (!t->published()) std::this_thread::yield();
    require_none(check_allgather(*t, 10, 1));
  });
  for (const size_t r : {size_t{0}, size_t{1}})
    CHECK(says(errors[r], Status::kAborted, "rank 2 reported: enough"));
  const loopback::Folder second;
  const auto ended = on_ranks(2, [&](int rank) {
    const auto t = meet(meeting(second, rank, 2));
    if (rank == 1) return;
    require_none(check_allgather(*t, 10, 1));
  });
  CHECK(says(ended[0], Status::kComm, "rank 1 has left"));
}

TEST_CASE("folder: a process that dies is named by who waits for it, long before the deadline",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // rank 1 sends, and is then killed; nothing of the tests runs in it
    try {
      const auto post = make_folder_post(meeting(folder, 1, 3), kLong);
      const int32_t last = 7;
      for (const uint64_t channel : {5, 6})
        post->send(channel, 2, &last, sizeof last, Deadline::in_ms(kLong));
      while (true) pause();
    } catch (...) {
    }
    _exit(1);
  }
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank == 1) return;
    const auto post = make_folder_post(meeting(folder, rank, 3), kLong);
    const auto deadline = Deadline::in_ms(kLong);
    int32_t got = 0;
    if (rank == 2) {
      // What it had sent is delivered, also behind its death.
      post->receive(6, 1, &got, sizeof got, deadline);
      kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      post->receive(5, 1, &got, sizeof got, deadline);
      if (got != 7) throw Error(Status::kInternal, cat("received ", got));
      try {
        post->receive(5, 1, &got, sizeof got, deadline);
      } catch (const Error& e) {
        post->publish(5, e.status(), e.message());
        throw;
      }
    }
    post->receive(5, 2, &got, sizeof got, deadline);
  });
  CHECK(says(errors[2], Status::kComm, "rank 1 has left or its process has ended"));
  CHECK(says(errors[0], Status::kComm, "rank 2 reported: rank 1 has left"));
}
