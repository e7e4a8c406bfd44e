// Ranks that meet in a folder, where others may write and earlier runs have left their files.
#include "comm/tcp/folder_rendezvous.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "comm/tcp/mailbox_transport.hpp"
#include "comm/tcp/tcp_mailbox.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

FolderRendezvous rendezvous(const loopback::Folder& folder, int rank, int size,
                            const std::string& secret = "") {
  return {rank, size, folder.path(), "run-1", 100, secret};
}

void meet(const FolderRendezvous& m, int64_t timeout_ms = kLong) {
  const auto t = make_mailbox_transport(make_folder_mailbox(m, timeout_ms));
  t->set_timeout_ms(timeout_ms);
  require_none(check_allgather(*t, 10, 1));
}

std::optional<Error> error_of(const FolderRendezvous& m, int64_t timeout_ms = kLong) {
  return on_ranks(1, [&](int) { meet(m, timeout_ms); })[0];
}

bool says(const std::optional<Error>& error, Status status, const std::string& words) {
  return error && error->status() == status && error->message().find(words) != std::string::npos;
}

bool is_empty(const loopback::Folder& folder) { return std::filesystem::is_empty(folder.path()); }

/// What rank 0 leaves for a meeting that nobody comes to.
std::string note_of(FolderRendezvous m) {
  m.rank = 0;
  m.size = 2;
  std::string out;
  std::thread host([&] { error_of(m, 1000); });
  const Deadline deadline = Deadline::in_ms(kLong);
  while (out.empty() && !deadline.passed()) {
    std::ostringstream content;
    content << std::ifstream(m.path + '/' + m.run_id, std::ios::binary).rdbuf();
    out = content.str();
  }
  host.join();
  return out;
}

}  // namespace

TEST_CASE("folder meeting: ranks meet, with a secret or none, and leave nothing behind",
          "[unit][comm][folder]") {
  for (const char* secret : {"", kSecret}) {
    for (const int size : {1, 2, 4}) {
      const loopback::Folder folder;
      const auto errors =
          on_ranks(size, [&](int rank) { meet(rendezvous(folder, rank, size, secret)); });
      CHECK(text_of(errors) == "");
      CHECK(is_empty(folder));
    }
  }
}

TEST_CASE("folder meeting: ranks that come before rank 0 wait, and the file is the user's alone",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank == 0) usleep(100'000);
    if (rank == 1) {
      struct stat about {};
      const std::string file = folder.path() + "/run-1";
      const Deadline deadline = Deadline::in_ms(kLong);
      while (stat(file.c_str(), &about) != 0 && !deadline.passed()) usleep(1000);
      if ((about.st_mode & 0777) != 0600) throw Error(Status::kInternal, "others may read it");
    }
    meet(rendezvous(folder, rank, 3));
  });
  CHECK(text_of(errors) == "");
}

TEST_CASE("folder meeting: two runs in one folder at the same time do not mix",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto errors = on_ranks(4, [&](int rank) {
    FolderRendezvous m = rendezvous(folder, rank / 2, 2, kSecret);
    m.run_id = rank % 2 == 0 ? "run-1" : "run-2";
    const auto t = make_mailbox_transport(make_folder_mailbox(m, kLong));
    const int32_t mine = rank;
    int32_t all[2] = {};
    t->allgather(&mine, all, sizeof mine);
    if (all[0] != rank % 2 || all[1] != rank % 2 + 2) throw Error(Status::kInternal, "mixed");
  });
  CHECK(text_of(errors) == "");
}

TEST_CASE(
    "folder meeting: a size or version that differs is told to all ranks, and nothing is left",
    "[unit][comm][folder]") {
  const auto with_rank_1 = [](const std::function<void(FolderRendezvous&)>& change) {
    const loopback::Folder folder;
    auto errors = on_ranks(2, [&](int rank) {
      FolderRendezvous m = rendezvous(folder, rank, 2);
      if (rank == 1) change(m);
      meet(m);
    });
    CHECK(is_empty(folder));
    return errors;
  };
  const auto size = with_rank_1([](FolderRendezvous& m) { m.size = 3; });
  const auto version = with_rank_1([](FolderRendezvous& m) { m.version = 7; });
  for (const size_t r : {size_t{0}, size_t{1}}) {
    CHECK(says(size[r], Status::kMismatch, "rank 1 believes in 3 ranks, rank 0 in 2"));
    CHECK(says(version[r], Status::kMismatch, "rank 1 runs version 7 of muonrt, rank 0 100"));
  }
}

TEST_CASE("folder meeting: missing ranks, missing folders and bad ids are named",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto missing = error_of(rendezvous(folder, 0, 3), 200);
  CHECK(says(missing, Status::kTimeout, "ranks 1, 2 of 3 did not come"));
  CHECK(says(missing, Status::kTimeout, folder.path() + "/run-1"));
  FolderRendezvous m = rendezvous(folder, 1, 3);
  CHECK(says(error_of(m, 200), Status::kTimeout, "rank 1 found no rank 0 at " + folder.path()));
  CHECK(says(error_of(m, 200), Status::kTimeout, "rank 0 has not made that file"));
  for (const char* id : {"", "a/b", "..", "with space"}) {
    m.run_id = id;
    CHECK(says(error_of(m), Status::kInvalidArgument, "run id"));
  }
  for (const int rank : {0, 1}) {
    m = rendezvous(folder, rank, 2);
    m.path += "/nowhere";
    CHECK(says(error_of(m), Status::kIo, "/nowhere cannot be opened"));
  }
  CHECK(is_empty(folder));
}

TEST_CASE("folder meeting: what a killed run has left is refused, and another id is another run",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // nothing of the tests runs in it
    try {
      rendezvous_in_folder(rendezvous(folder, 0, 2), Deadline::in_ms(kLong));
    } catch (...) {
    }
    _exit(1);
  }
  const Deadline deadline = Deadline::in_ms(kLong);
  while (access((folder.path() + "/run-1").c_str(), F_OK) != 0 && !deadline.passed()) usleep(1000);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(says(error_of(rendezvous(folder, 0, 2)), Status::kInvalidState,
             "run-1 is there already (an earlier run"));
  CHECK(says(error_of(rendezvous(folder, 1, 2), 300), Status::kTimeout,
             "remove that file where an earlier run has left it"));
  const auto fresh = on_ranks(2, [&](int rank) {
    FolderRendezvous m = rendezvous(folder, rank, 2);
    m.run_id = "run-2";
    meet(m);
  });
  CHECK(text_of(fresh) == "");
}

TEST_CASE("folder meeting: who has another secret is told, and leaves its place to the right one",
          "[unit][comm][folder]") {
  for (const char* other : {"another secret altogether", ""}) {
    const loopback::Folder folder;
    const auto errors = on_ranks(2, [&](int rank) {
      if (rank == 1) {
        const auto refused = error_of(rendezvous(folder, 1, 2, other));
        if (!says(refused, Status::kComm, "rank 0 and rank 1 have different secrets"))
          throw Error(Status::kInternal, refused ? refused->message() : "taken in");
      }
      meet(rendezvous(folder, rank, 2, kSecret));
    });
    CHECK(text_of(errors) == "");
  }
}

TEST_CASE("folder meeting: a file of another run, cut short, changed or none of ours is refused",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const FolderRendezvous mine = rendezvous(folder, 1, 2, kSecret);
  const auto told = [&](const std::string& content) {
    std::ofstream(folder.path() + "/run-1", std::ios::binary) << content;
    return error_of(mine);
  };
  const std::string note = note_of(mine);
  REQUIRE(note.size() > 100);
  FolderRendezvous other = mine;
  other.run_id = "run-2";
  std::string changed = note;
  changed.back() = 'x';
  CHECK(says(told(note_of(other)), Status::kComm, "is an earlier run's"));
  CHECK(says(told(note.substr(0, note.size() - 1)), Status::kComm, "different secrets"));
  CHECK(says(told(changed), Status::kComm, "different secrets"));
  CHECK(says(told(note.substr(0, 20)), Status::kCorrupt, "run-1 is no file of rank 0"));
  CHECK(says(told(std::string(200, 'x')), Status::kCorrupt, "run-1 is no file of rank 0"));
  other = mine;
  other.rank = 0;
  CHECK(says(error_of(other), Status::kInvalidState, "is there already"));
}

TEST_CASE("folder meeting: a file that is a link, a folder or endless is refused",
          "[unit][comm][folder]") {
  const auto told = [](const std::function<void(const std::string&)>& put) {
    const loopback::Folder folder;
    put(folder.path() + "/run-1");
    return error_of(rendezvous(folder, 1, 2, kSecret));
  };
  const auto linked =
      told([](const std::string& at) { REQUIRE(symlink("/dev/zero", at.c_str()) == 0); });
  const auto nested = told([](const std::string& at) { REQUIRE(mkdir(at.c_str(), 0700) == 0); });
  const auto endless = told([](const std::string& at) {
    std::ofstream(at) << 'x';
    REQUIRE(truncate(at.c_str(), off_t{1} << 40) == 0);
  });
  CHECK(says(linked, Status::kIo, "run-1 cannot be opened"));
  CHECK(says(nested, Status::kCorrupt, "run-1 is no file"));
  CHECK(says(endless, Status::kCorrupt, "has 1099511627776 bytes"));
}

TEST_CASE("folder meeting: without a secret a file of another user is refused",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const std::string file = folder.path() + "/run-1", note = note_of(rendezvous(folder, 0, 2));
  REQUIRE_FALSE(note.empty());
  std::ofstream(file) << note;
  const uid_t other = geteuid() + 1;
  if (chown(file.c_str(), other, static_cast<gid_t>(-1)) != 0) {
    WARN("not checked: root alone may give a file to another user");
    return;
  }
  const auto refused = error_of(rendezvous(folder, 1, 2), 200);
  CHECK(says(refused, Status::kInvalidState, cat("belongs to user ", other)));
}
