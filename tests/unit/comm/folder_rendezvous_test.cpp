// Tests the rendezvous in a folder that other users may write to and that contains files from
// earlier runs.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/tcp/rendezvous.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"

using namespace muonrt;
using namespace transport_test;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLong = 30'000;
constexpr const char* kSecret = "a secret of this test";

/// A shared folder, and the file that rank 0 of the run "run-1" writes.
struct Shared {
  const loopback::Folder folder;
  const std::string file = folder.path() + "/run-1";

  Rendezvous rank(int rank, int size = 2, const std::string& secret = "") const {
    return {rank, size, folder.path(), secret, 100, {}, {}, "run-1"};
  }
  void write(const std::string& content) const { std::ofstream(file, std::ios::binary) << content; }
  bool is_empty() const { return fs::is_empty(folder.path()); }
};

std::optional<Error> error_of(const Rendezvous& m, int64_t timeout_ms = kLong) {
  return transport_test::error_of([&] { rendezvous_in_folder(m, Deadline::in_ms(timeout_ms)); });
}

/// Returns the content of the file that rank 0 writes, which only the user may read.
std::string file_of_rank_0(const Rendezvous& m) {
  const std::string file = m.address + '/' + m.run_id;
  std::string out;
  std::thread host([&] { error_of(m, 1000); });
  for (const Deadline deadline = Deadline::in_ms(kLong); out.empty() && !deadline.passed();) {
    std::ifstream content(file, std::ios::binary);
    out.assign(std::istreambuf_iterator<char>(content), {});
  }
  CHECK(fs::status(file).permissions() == fs::perms(0600));
  host.join();
  CHECK(out.size() > 100);
  return out;
}

}  // namespace

TEST_CASE("folder rendezvous: missing ranks, missing folders and invalid run ids are named",
          "[unit][comm][folder]") {
  const Shared shared;
  const auto missing = error_of(shared.rank(0, 3), 200);
  CHECK(is_error(missing, Status::kTimeout, "ranks 1, 2 of 3 did not connect"));
  CHECK(is_error(missing, Status::kTimeout, shared.file));
  Rendezvous m = shared.rank(1, 3);
  const auto alone = error_of(m, 200);
  CHECK(is_error(alone, Status::kTimeout, "rank 1 found no rank 0 at " + shared.file));
  CHECK(is_error(alone, Status::kTimeout, "rank 0 has not created the file"));
  for (const char* id : {"", "a/b", "..", "with space"}) {
    m.run_id = id;
    CHECK(is_error(error_of(m), Status::kInvalidArgument, "run_id"));
  }
  for (const int rank : {0, 1}) {
    m = shared.rank(rank);
    m.address += "/nowhere";
    CHECK(is_error(error_of(m), Status::kIo, "/nowhere cannot be opened"));
  }
  CHECK(shared.is_empty());
}

TEST_CASE(
    "folder rendezvous: the file of a killed run or, without a secret, of another user is "
    "rejected, "
    "and another run_id is another run, whose ranks wait for rank 0 and leave no file",
    "[unit][comm][folder]") {
  const Shared shared;
  shared.write(file_of_rank_0(shared.rank(0)));
  CHECK(is_error(error_of(shared.rank(0)), Status::kInvalidState,
                 "run-1 already exists, from an earlier run"));
  CHECK(is_error(error_of(shared.rank(1), 300), Status::kTimeout,
                 "delete that file if it is from an earlier run"));
  for (const char* secret : {"", kSecret}) {
    const auto fresh = on_ranks(3, [&](int rank) {
      Rendezvous m = shared.rank(rank, 3, secret);
      m.run_id = "run-2";
      if (rank == 0) usleep(100'000);
      rendezvous_in_folder(m, Deadline::in_ms(kLong));
    });
    CHECK(text_of(fresh) == "");
    CHECK(std::distance(fs::directory_iterator(shared.folder.path()), {}) == 1);
  }
  const uid_t other = geteuid() + 1;
  if (chown(shared.file.c_str(), other, static_cast<gid_t>(-1)) != 0) {
    WARN("not checked: only root may change the owner of a file");
    return;
  }
  CHECK(is_error(error_of(shared.rank(1), 200), Status::kInvalidState,
                 cat("belongs to user ", other)));
}

TEST_CASE(
    "folder rendezvous: a file that has another secret or run, or is truncated, changed or foreign "
    "is rejected",
    "[unit][comm][folder]") {
  const Shared shared;
  Rendezvous rank_0 = shared.rank(0, 2, kSecret);
  const std::string content = file_of_rank_0(rank_0);
  rank_0.run_id = "run-2";
  const std::string of_other_run = file_of_rank_0(rank_0);
  std::string changed = content;
  changed.back() = 'x';
  struct Row {
    std::string content;
    Status status;
    const char* text;
    const char* secret = kSecret;
  };
  for (const Row& row :
       {Row{content, Status::kComm, "rank 0 and rank 1 have different secrets", "another secret"},
        Row{content, Status::kComm, "rank 0 and rank 1 have different secrets", ""},
        Row{of_other_run, Status::kComm, "is from an earlier run"},
        Row{content.substr(0, content.size() - 1), Status::kComm, "different secrets"},
        Row{changed, Status::kComm, "different secrets"},
        Row{content.substr(0, 20), Status::kCorrupt, "run-1 was not written by rank 0"},
        Row{std::string(200, 'x'), Status::kCorrupt, "run-1 was not written by rank 0"}}) {
    shared.write(row.content);
    CHECK(is_error(error_of(shared.rank(1, 2, row.secret)), row.status, row.text));
  }
}

TEST_CASE("folder rendezvous: a file that is a link, a folder or too long is rejected",
          "[unit][comm][folder]") {
  const Shared shared;
  const auto error = [&] { return error_of(shared.rank(1, 2, kSecret)); };
  fs::create_symlink("/dev/zero", shared.file);
  CHECK(is_error(error(), Status::kIo, "run-1 cannot be opened"));
  fs::remove(shared.file);
  fs::create_directory(shared.file);
  CHECK(is_error(error(), Status::kCorrupt, "run-1 is not a regular file"));
  fs::remove(shared.file);
  shared.write("x");
  fs::resize_file(shared.file, size_t{1} << 40);
  CHECK(is_error(error(), Status::kCorrupt, "has 1099511627776 bytes"));
}
