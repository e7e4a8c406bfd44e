// Ranks that meet in a folder with a secret, or without, where others may write.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <functional>

#include "comm/folder_post.hpp"
#include "comm/looks.hpp"
#include "comm/post_transport.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

FolderMeeting meeting(const loopback::Folder& folder, int rank, int size,
                      const std::string& secret = kSecret) {
  return {rank, size, folder.path(), "run-1", 100, secret};
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("folder secret: ranks that know it meet, and who has another is told apart",
          "[unit][comm][folder]") {
  const auto with_rank_1 = [](const std::string& secret, int64_t timeout_ms) {
    const loopback::Folder folder;
    return on_ranks(3, [&](int rank) {
      const FolderMeeting m = meeting(folder, rank, 3, rank == 1 ? secret : kSecret);
      const auto t = make_post_transport(make_folder_post(m, timeout_ms));
      require_none(check_allgather(*t, 10, 1));
    });
  };
  CHECK(text_of(with_rank_1(kSecret, kLong)) == "");
  for (const char* other : {"another secret altogether", ""}) {
    const auto errors = with_rank_1(other, 1000);
    CHECK(says(errors[1], Status::kComm, "rank 0 and rank 1 have different secrets"));
    CHECK(says(errors[0], Status::kTimeout, "rank 1 of 3 did not come"));
    CHECK(says(errors[0], Status::kTimeout, "rank 1 came with another secret"));
  }
}

TEST_CASE("folder secret: who has come with another leaves its place to the right one",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto errors = on_ranks(2, [&](int rank) {
    if (rank == 1) {
      try {
        make_folder_post(meeting(folder, 1, 2, "another secret altogether"), kLong);
      } catch (const Error& e) {
        if (e.status() != Status::kComm) throw;
      }
    }
    make_folder_post(meeting(folder, rank, 2), kLong);
  });
  CHECK(text_of(errors) == "");
}

TEST_CASE("folder secret: an answer without it, or for other cards, is not rank 0's",
          "[unit][comm][folder]") {
  const auto answered = [](const std::string& secret, bool listed, Status status) {
    const loopback::Folder folder;
    return on_ranks(2, [&](int rank) {
      if (rank == 1) {
        make_folder_post(meeting(folder, 1, 2), kLong);
        return;
      }
      RunFolder run(folder.path(), "run-1", 0);
      run.make();
      std::string card;
      const Deadline deadline = Deadline::in_ms(kLong);
      for (Looks looks; !run.read("card.1", card) && !deadline.passed();) looks.pause();
      std::vector<Card> cards(2, make_card(meeting(folder, 1, 2)));
      if (listed && card.size() == sizeof(Card)) std::memcpy(&cards[1], card.data(), sizeof(Card));
      const std::string answer =
          make_answer(meeting(folder, 0, 2, secret), cards, status, "shared folder: words");
      run.write("answer", answer.data(), std::ssize(answer));
    })[1];
  };
  CHECK(says(answered("guessed secret", true, Status::kOk), Status::kComm, "different secrets"));
  CHECK(says(answered("guessed secret", true, Status::kIo), Status::kComm, "different secrets"));
  CHECK(says(answered("guessed secret", false, Status::kOk), Status::kInvalidState,
             "by another secret"));
  CHECK(says(answered(kSecret, false, Status::kOk), Status::kInvalidState,
             "the answer of an earlier run"));
  CHECK(says(answered(kSecret, false, Status::kIo), Status::kIo,
             "words (rank 1 is not in this answer"));
  CHECK(says(answered(kSecret, false, Status::kIo), Status::kIo, "of an earlier run"));
}

TEST_CASE("folder secret: a proof is for one card, one run and one secret alone",
          "[unit][comm][folder]") {
  const FolderMeeting m{1, 2, "/nowhere", "run-1", 100, kSecret};
  const Card card = make_card(m);
  CHECK(card.proof == proof_of(m, card));
  CHECK(card.proof != make_card(m).proof);
  FolderMeeting other = m;
  other.run_id = "run-2";
  CHECK(card.proof != proof_of(other, card));
  other = m;
  other.secret = "a Secret of this test";
  CHECK(card.proof != proof_of(other, card));
  Card changed = card;
  changed.rank = 0;
  CHECK(card.proof != proof_of(m, changed));
}

TEST_CASE("folder secret: an answer that is a link, a folder or endless is refused",
          "[unit][comm][folder]") {
  const auto told = [](const std::function<void(const std::string&)>& put) {
    const loopback::Folder folder;
    const std::string run = folder.path() + "/run-1";
    if (mkdir(run.c_str(), 0700) == 0) put(run + "/answer");
    return on_ranks(1, [&](int) { make_folder_post(meeting(folder, 1, 2), kLong); })[0];
  };
  const auto linked =
      told([](const std::string& at) { REQUIRE(symlink("/dev/zero", at.c_str()) == 0); });
  const auto nested = told([](const std::string& at) { REQUIRE(mkdir(at.c_str(), 0700) == 0); });
  const auto endless = told([](const std::string& at) {
    std::ofstream(at) << 'x';
    REQUIRE(truncate(at.c_str(), off_t{1} << 40) == 0);
  });
  CHECK(says(linked, Status::kIo, "answer cannot be opened"));
  CHECK(says(nested, Status::kCorrupt, "answer is no file"));
  CHECK(says(endless, Status::kCorrupt, "answer has 1099511627776 bytes"));
}

TEST_CASE("folder secret: a lock that cannot be looked at is neither held nor free",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  RunFolder run(folder.path(), "run-1", 0);
  run.make();
  CHECK(run.lacks_lock(0));
  REQUIRE(run.take_lock());
  CHECK(run.has_lock(0));
  REQUIRE(symlink("alive.0", (run.path() + "/alive.1").c_str()) == 0);  // which is not followed
  CHECK(run.lock_of(1) == RunFolder::Lock::kUnknown);
  CHECK_FALSE(run.lacks_lock(1));
}

TEST_CASE("folder secret: without one a folder of another user is refused",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const std::string run = folder.path() + "/run-1";
  REQUIRE(mkdir(run.c_str(), 0777) == 0);
  const uid_t other = geteuid() + 1;
  if (chown(run.c_str(), other, static_cast<gid_t>(-1)) != 0) {
    WARN("not checked: root alone may give a folder to another user");
    return;
  }
  const auto refused = on_ranks(1, [&](int) { make_folder_post(meeting(folder, 1, 2, ""), 100); });
  CHECK(says(refused[0], Status::kInvalidState, cat("belongs to user ", other)));
  const auto waits = on_ranks(1, [&](int) { make_folder_post(meeting(folder, 1, 2), 100); });
  CHECK(says(waits[0], Status::kTimeout, "rank 0 gave no answer"));
}
