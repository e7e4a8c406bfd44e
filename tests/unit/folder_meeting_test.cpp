// Ranks that meet in a folder, of which some die, lie or are cut short.
#include "comm/folder_meeting.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "comm/folder_post.hpp"
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

void await(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::in_ms(kLong);
  while (!done() && !deadline.passed()) usleep(1000);
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

void put(const std::string& file, const std::string& content) {
  std::ofstream(file + ".draft") << content;
  rename((file + ".draft").c_str(), file.c_str());
}

/// Returns when rank 0 has seen all that is there now. It reads cards in order, and that of a
/// stranger, whom it turns away, in every look: the second one in a look that began after the call.
void see_all(const loopback::Folder& folder, int size) {
  const RunFolder run(folder.path(), "run-1", 2);
  FolderMeeting stranger = meeting(folder, 2, size);
  stranger.secret = "another secret";
  for (int i = 0; i < 2; ++i) {
    const Card card = make_card(stranger);
    put(run.path() + "/card.2", std::string(reinterpret_cast<const char*>(&card), sizeof card));
    await([&] { return !run.exists("card.2"); });
  }
}

/// The process of a rank that meets the others and then only waits.
pid_t start_rank(const FolderMeeting& m) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    const auto post = make_folder_post(m, kLong);
    while (true) pause();
  } catch (...) {
  }
  _exit(1);
}

void kill_and_wait(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
}

}  // namespace

TEST_CASE("folder meeting: a process that changes its directory keeps its folder",
          "[unit][comm][folder]") {
  const loopback::Folder folder, elsewhere;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a directory is a process's, and the tests' stays
    if (chdir(folder.path().c_str()) != 0) _exit(2);
    const auto errors = on_ranks(2, [&](int rank) {
      FolderMeeting m = meeting(folder, rank, 2);
      m.path = ".";
      const auto t = make_post_transport(make_folder_post(m, kLong));
      require_none(check_allgather(*t, 10, 1));
      if (rank == 0 && chdir(elsewhere.path().c_str()) != 0) require_none("chdir");
      require_none(check_allgather(*t, 10, 2));
      require_none(check_allgather(*t, 10, 3));
    });
    struct stat about {};
    const bool left = stat((folder.path() + "/run-1").c_str(), &about) == 0;
    _exit(text_of(errors).empty() && !left ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("folder meeting: a rank 0 that dies before all have come is named at once",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const pid_t child = start_rank(meeting(folder, 0, 3));
  const RunFolder run(folder.path(), "run-1", 2);
  await([&] { return run.has_lock(0); });
  std::thread killer([&] {
    await([&] { return run.exists("card.1"); });
    kill_and_wait(child);
  });
  const auto errors = on_ranks(2, [&](int rank) {
    if (rank == 1) make_folder_post(meeting(folder, 1, 3), kLong);
  });
  killer.join();
  CHECK(says(errors[1], Status::kComm, "rank 0 has left or its process has ended"));
}

TEST_CASE("folder meeting: a rank that came and died is named to all at once",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const pid_t child = start_rank(meeting(folder, 1, 4));
  const RunFolder run(folder.path(), "run-1", 3);
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank == 1) {
      await([&] { return run.exists("card.1"); });
      see_all(folder, 4);
      return kill_and_wait(child);
    }
    make_folder_post(meeting(folder, rank == 2 ? 3 : rank, 4), kLong);
  });
  for (const size_t r : {size_t{0}, size_t{2}}) {
    CHECK(says(errors[r], Status::kComm, "rank 1 came, and its process has ended"));
    CHECK(says(errors[r], Status::kComm, "rank 2 had not come"));
  }
}

TEST_CASE("folder meeting: a rank that gives up says so, and rank 0 waits on for the missing",
          "[unit][comm][folder]") {
  const loopback::Folder folder, second;
  RunFolder host(folder.path(), "run-1", 0);
  host.make();
  const auto gone = on_ranks(1, [&](int) { make_folder_post(meeting(folder, 1, 3), 50); });
  CHECK(says(gone[0], Status::kTimeout, "rank 0 gave no answer"));
  CHECK(host.exists("gave_up.1"));
  const auto errors = on_ranks(2, [&](int rank) {
    if (rank == 0) {
      make_folder_post(meeting(second, 0, 4), 3000);
      return;
    }
    RunFolder run(second.path(), "run-1", 1);
    await([&] { return run.is_there(); });
    run.take_lock();
    const Card card = make_card(meeting(second, 1, 4));
    run.write("card.1", &card, sizeof card);
    see_all(second, 4);
    run.write("gave_up.1", nullptr, 0);
    run.drop_lock();
  });
  CHECK(says(errors[0], Status::kTimeout,
             "ranks 2, 3 of 4 did not come before the deadline; rank 1 came and gave up"));
}

TEST_CASE("folder meeting: an answer behind a rank's deadline reaches it while rank 0 is there",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  RunFolder host(folder.path(), "run-1", 0);
  host.make();
  REQUIRE(host.take_lock());
  const auto errors = on_ranks(2, [&](int rank) {
    if (rank == 1) {
      make_folder_post(meeting(folder, 1, 3), 1);
      return;
    }
    std::string card;
    await([&] { return host.read("card.1", card); });
    usleep(20'000);
    std::vector<Card> cards(3);
    std::memcpy(&cards[1], card.data(), std::min(card.size(), sizeof(Card)));
    const std::string answer =
        make_answer(meeting(folder, 0, 3), cards, Status::kTimeout, "rank 2 is missing");
    host.write("answer", answer.data(), std::ssize(answer));
  });
  CHECK(says(errors[1], Status::kTimeout, "rank 2 is missing"));
}

TEST_CASE("folder meeting: a card that is none, or another rank's, is named to all at once",
          "[unit][comm][folder]") {
  const auto with_card_1 = [](const std::function<std::string(Card)>& change) {
    const loopback::Folder folder;
    return on_ranks(3, [&](int rank) {
      if (rank != 1) {
        make_folder_post(meeting(folder, rank, 3), kLong);
        return;
      }
      const RunFolder run(folder.path(), "run-1", 1);
      await([&] { return run.is_there(); });
      put(run.path() + "/card.1", change(make_card(meeting(folder, 1, 3))));
    });
  };
  FolderMeeting run_1;
  run_1.run_id = "run-1";
  const auto bytes = [](const Card& card) {
    return std::string(reinterpret_cast<const char*>(&card), sizeof card);
  };
  const auto cut = with_card_1([&](Card card) { return bytes(card).substr(0, 20); });
  const auto other = with_card_1([&](Card card) { return std::string(sizeof card, 'x'); });
  const auto none = with_card_1([&](Card card) {
    card.size = 0;
    card.proof = proof_of(run_1, card);
    return bytes(card);
  });
  const auto liar = with_card_1([&](Card card) {
    card.rank = 7;
    card.proof = proof_of(run_1, card);
    return bytes(card);
  });
  for (const size_t r : {size_t{0}, size_t{2}}) {
    CHECK(says(cut[r], Status::kCorrupt, "the card of rank 1 has 20 bytes"));
    CHECK(says(other[r], Status::kCorrupt, "the card of rank 1 holds something else"));
    CHECK(says(none[r], Status::kMismatch, "rank 1 believes in 0 ranks, rank 0 in 3"));
    CHECK(says(liar[r], Status::kMismatch, "the card of rank 1 says that it is of rank 7"));
  }
}

TEST_CASE("folder meeting: a rank beyond those that rank 0 counts is told so",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  std::atomic<bool> told = false;
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank < 2) {
      const auto post = make_folder_post(meeting(folder, rank, 2), kLong);
      return await([&] { return told.load(); });  // the folder stays until it has come
    }
    try {
      make_folder_post(meeting(folder, 2, 3), kLong);
    } catch (...) {
      told = true;
      throw;
    }
  });
  CHECK(says(errors[2], Status::kMismatch, "rank 2 believes in 3 ranks, rank 0 in 2"));
  CHECK_FALSE(errors[0]);
  CHECK_FALSE(errors[1]);
}
