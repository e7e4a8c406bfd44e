// Tests that saves are not affected by forked children, other users or a change of the working
// directory.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "muonrt/checkpoint.h"
#include "muonrt/comm.h"
#include "state/files.hpp"
#include "support/checkpoints.hpp"
#include "support/folder.hpp"
#include "support/one_matrix.hpp"

using namespace muonrt;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

/// An optimizer of one matrix on one rank, with reserved memory for a background save.
class Saver {
 public:
  Saver() {
    REQUIRE(muonrt_comm_create_self(&comm_) == MUONRT_OK);
    REQUIRE(matrix_.create(comm_) == MUONRT_OK);
    REQUIRE(muonrt_optimizer_save_reserve(nullptr, optimizer(), nullptr) == MUONRT_OK);
  }
  ~Saver() {
    matrix_.destroy();
    muonrt_comm_destroy(comm_);
  }
  muonrt_optimizer_t* optimizer() const { return matrix_.optimizer; }
  muonrt_status_t save(const std::string& folder) {
    return muonrt_optimizer_save(optimizer(), folder.c_str(), nullptr);
  }
  muonrt_status_t begin(const std::string& folder) {
    return muonrt_optimizer_save_begin(optimizer(), folder.c_str(), nullptr);
  }
  muonrt_status_t wait() { return muonrt_optimizer_save_wait(optimizer()); }
  muonrt_status_t load(const std::string& folder) {
    return muonrt_optimizer_load(optimizer(), folder.c_str(), nullptr);
  }

 private:
  muonrt_comm_t* comm_ = nullptr;
  OneMatrix matrix_;
};

mode_t mode_of(const std::string& path) {
  struct stat info;
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

}  // namespace

TEST_CASE("save: a child that destroys the optimizer does not affect the parent's save",
          "[unit][state]") {
  const test_support::Folder folder;
  Saver saver;
  REQUIRE(saver.begin(folder.path()) == MUONRT_OK);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a destructor that waits for the parent's threads would block forever
    muonrt_optimizer_destroy(saver.optimizer());
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(saver.wait() == MUONRT_OK);
  CHECK(saver.load(folder.path()) == MUONRT_OK);
}

TEST_CASE("save: a child that outlives the save does not keep the folder locked", "[unit][state]") {
  const test_support::Folder folder;
  Saver saver;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(saver.begin(folder.path()) == MUONRT_OK);
  const pid_t child = fork();  // like a worker process of a data loader
  if (child == 0) {
    close(ends[1]);
    char byte;
    while (read(ends[0], &byte, 1) > 0) continue;
    _exit(0);
  }
  CHECK(saver.wait() == MUONRT_OK);
  CHECK(saver.save(folder.path()) == MUONRT_OK);
  Saver another;
  REQUIRE(saver.begin(folder.path()) == MUONRT_OK);
  CHECK(another.save(folder.path()) == MUONRT_ERROR_IO);  // the folder is locked
  CHECK(saver.wait() == MUONRT_OK);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  close(ends[0]);
}

TEST_CASE("save: only users who may write the lock file can read it", "[unit][state]") {
  const test_support::Folder folder;
  const std::string path = folder.path() + "/lock";
  Files files;
  const mode_t before = umask(022);
  for (const auto& [mask, mode] :
       {std::pair<mode_t, mode_t>{022, 0600}, {002, 0660}, {007, 0660}, {000, 0666}}) {
    umask(mask);
    fs::remove(path);
    { const FileLock lock = files.lock(path); }
    CHECK(mode_of(path) == mode);
  }
  umask(before);
  chmod(path.c_str(), 0644);  // taking the lock also restricts the mode of an existing file
  { const FileLock lock = files.lock(path); }
  CHECK(mode_of(path) == 0600);
}

TEST_CASE("save: a relative folder is resolved when the save begins", "[unit][state]") {
  const test_support::Folder here, elsewhere;
  const fs::path before = fs::current_path();
  Saver saver;
  fs::current_path(here.path());
  CHECK(saver.begin("saved") == MUONRT_OK);
  fs::current_path(elsewhere.path());
  CHECK(saver.wait() == MUONRT_OK);
  fs::current_path(before);
  CHECK(saver.load(here.path() + "/saved") == MUONRT_OK);
  CHECK(fs::is_empty(elsewhere.path()));
}

// If such a manifest were treated as absent, a save with `keep` would replace it.
TEST_CASE("files: a file that cannot be examined is an error, not absent", "[unit][state]") {
  const test_support::Folder folder;
  Files files;
  const std::string loop = folder.path() + "/loop",
                    long_name = folder.path() + std::string(300, 'x');
  fs::create_symlink(loop, loop);
  CHECK_FALSE(files.exists(folder.path() + "/absent"));
  CHECK(files.size(folder.path() + "/absent") == -1);
  for (const std::string& path : {loop, long_name}) {
    CHECK_THAT(resumed::problem_of([&] { files.exists(path); }), Contains("cannot be examined"));
    CHECK_THAT(resumed::problem_of([&] { files.size(path); }), Contains("cannot be examined"));
  }
}
