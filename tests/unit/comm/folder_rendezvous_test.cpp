// Tests the rendezvous in a folder that other users may write to and that contains files from
// earlier runs.
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "comm/tcp/tcp_transport.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

Rendezvous rendezvous(const loopback::Folder& folder, int rank, int size,
                      const std::string& secret = "") {
  return {rank, size, folder.path(), secret, 100, {}, {}, "run-1"};
}

void run_rank(const Rendezvous& m, int64_t timeout_ms = kLong) {
  const auto t = make_tcp_transport(rendezvous_in_folder(m, Deadline::in_ms(timeout_ms)));
  t->set_timeout_ms(timeout_ms);
  require_none(check_allgather(*t, 10, 1));
}

std::optional<Error> error_of(const Rendezvous& m, int64_t timeout_ms = kLong) {
  return transport_test::error_of([&] { run_rank(m, timeout_ms); });
}

bool is_empty(const loopback::Folder& folder) { return std::filesystem::is_empty(folder.path()); }

/// Returns the content of the file that rank 0 writes.
std::string file_of_rank_0(Rendezvous m) {
  m.rank = 0;
  m.size = 2;
  std::string out;
  std::thread host([&] { error_of(m, 1000); });
  const Deadline deadline = Deadline::in_ms(kLong);
  while (out.empty() && !deadline.passed()) {
    std::ostringstream content;
    content << std::ifstream(m.address + '/' + m.run_id, std::ios::binary).rdbuf();
    out = content.str();
  }
  host.join();
  return out;
}

}  // namespace

TEST_CASE(
    "folder rendezvous: ranks wait for rank 0, only the user may read the file, and none is left",
    "[unit][comm][folder]") {
  for (const char* secret : {"", kSecret}) {
    const loopback::Folder folder;
    const auto errors = on_ranks(3, [&](int rank) {
      if (rank == 0) usleep(100'000);
      if (rank == 1) {
        struct stat about {};
        const std::string file = folder.path() + "/run-1";
        const Deadline deadline = Deadline::in_ms(kLong);
        while (stat(file.c_str(), &about) != 0 && !deadline.passed()) usleep(1000);
        if ((about.st_mode & 0777) != 0600)
          throw Error(Status::kInternal, "other users may read the file");
      }
      run_rank(rendezvous(folder, rank, 3, secret));
    });
    CHECK(text_of(errors) == "");
    CHECK(is_empty(folder));
  }
}

TEST_CASE("folder rendezvous: missing ranks, missing folders and invalid run ids are named",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const auto missing = error_of(rendezvous(folder, 0, 3), 200);
  CHECK(is_error(missing, Status::kTimeout, "ranks 1, 2 of 3 did not connect"));
  CHECK(is_error(missing, Status::kTimeout, folder.path() + "/run-1"));
  Rendezvous m = rendezvous(folder, 1, 3);
  CHECK(is_error(error_of(m, 200), Status::kTimeout, "rank 1 found no rank 0 at " + folder.path()));
  CHECK(is_error(error_of(m, 200), Status::kTimeout, "rank 0 has not created the file"));
  for (const char* id : {"", "a/b", "..", "with space"}) {
    m.run_id = id;
    CHECK(is_error(error_of(m), Status::kInvalidArgument, "run_id"));
  }
  for (const int rank : {0, 1}) {
    m = rendezvous(folder, rank, 2);
    m.address += "/nowhere";
    CHECK(is_error(error_of(m), Status::kIo, "/nowhere cannot be opened"));
  }
  CHECK(is_empty(folder));
}

TEST_CASE(
    "folder rendezvous: the file of a killed run is rejected, and another run_id is another run",
    "[unit][comm][folder]") {
  const loopback::Folder folder;
  const std::string content = file_of_rank_0(rendezvous(folder, 0, 2));
  std::ofstream(folder.path() + "/run-1", std::ios::binary) << content;
  CHECK(is_error(error_of(rendezvous(folder, 0, 2)), Status::kInvalidState,
                 "run-1 already exists, from an earlier run"));
  CHECK(is_error(error_of(rendezvous(folder, 1, 2), 300), Status::kTimeout,
                 "delete that file if it is from an earlier run"));
  const auto fresh = on_ranks(2, [&](int rank) {
    Rendezvous m = rendezvous(folder, rank, 2);
    m.run_id = "run-2";
    run_rank(m);
  });
  CHECK(text_of(fresh) == "");
}

TEST_CASE(
    "folder rendezvous: a file that has another secret or run, or is truncated, changed or foreign "
    "is rejected",
    "[unit][comm][folder]") {
  const loopback::Folder folder;
  const Rendezvous mine = rendezvous(folder, 1, 2, kSecret);
  const auto error_with = [&](const std::string& content, const std::string& secret = kSecret) {
    std::ofstream(folder.path() + "/run-1", std::ios::binary) << content;
    return error_of(rendezvous(folder, 1, 2, secret));
  };
  const std::string content = file_of_rank_0(mine);
  REQUIRE(content.size() > 100);
  Rendezvous other = mine;
  other.run_id = "run-2";
  std::string changed = content;
  changed.back() = 'x';
  for (const char* secret : {"another secret altogether", ""})
    CHECK(is_error(error_with(content, secret), Status::kComm,
                   "rank 0 and rank 1 have different secrets"));
  CHECK(is_error(error_with(file_of_rank_0(other)), Status::kComm, "is from an earlier run"));
  CHECK(is_error(error_with(content.substr(0, content.size() - 1)), Status::kComm,
                 "different secrets"));
  CHECK(is_error(error_with(changed), Status::kComm, "different secrets"));
  CHECK(is_error(error_with(content.substr(0, 20)), Status::kCorrupt,
                 "run-1 was not written by rank 0"));
  CHECK(is_error(error_with(std::string(200, 'x')), Status::kCorrupt,
                 "run-1 was not written by rank 0"));
}

TEST_CASE("folder rendezvous: a file that is a link, a folder or too long is rejected",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const std::string file = folder.path() + "/run-1";
  const auto error = [&] { return error_of(rendezvous(folder, 1, 2, kSecret)); };
  REQUIRE(symlink("/dev/zero", file.c_str()) == 0);
  CHECK(is_error(error(), Status::kIo, "run-1 cannot be opened"));
  REQUIRE(unlink(file.c_str()) == 0);
  REQUIRE(mkdir(file.c_str(), 0700) == 0);
  CHECK(is_error(error(), Status::kCorrupt, "run-1 is not a regular file"));
  REQUIRE(rmdir(file.c_str()) == 0);
  std::ofstream(file) << 'x';
  REQUIRE(truncate(file.c_str(), off_t{1} << 40) == 0);
  CHECK(is_error(error(), Status::kCorrupt, "has 1099511627776 bytes"));
}

TEST_CASE("folder rendezvous: without a secret the file of another user is rejected",
          "[unit][comm][folder]") {
  const loopback::Folder folder;
  const std::string file = folder.path() + "/run-1",
                    content = file_of_rank_0(rendezvous(folder, 0, 2));
  REQUIRE_FALSE(content.empty());
  std::ofstream(file) << content;
  const uid_t other = geteuid() + 1;
  if (chown(file.c_str(), other, static_cast<gid_t>(-1)) != 0) {
    WARN("not checked: only root may change the owner of a file");
    return;
  }
  const auto rejected = error_of(rendezvous(folder, 1, 2), 200);
  CHECK(is_error(rejected, Status::kInvalidState, cat("belongs to user ", other)));
}
