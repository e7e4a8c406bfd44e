// Tests the process's log: levels, replacing the log function, threads, forked children, and which
// events are logged.

#include "base/log.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "muonrt/base.h"
#include "support/checkpoints.hpp"
#include "support/folder.hpp"
#include "support/one_matrix.hpp"
#include "support/rank_check.hpp"

using namespace muonrt;

namespace {

/// Collects the messages of the process until it is destroyed.
class LogLines {
 public:
  explicit LogLines(enum muonrt_log_level level) {
    REQUIRE(muonrt_set_log(
                [](void* state, enum muonrt_log_level of, const char* message) {
                  static_cast<LogLines*>(state)->lines_.push_back(
                      cat(static_cast<int>(of), " ", message));
                },
                this, level) == MUONRT_OK);
  }
  ~LogLines() { muonrt_set_log(nullptr, nullptr, MUONRT_LOG_OFF); }

  /// Stops collecting and returns the lines.
  const std::vector<std::string>& lines() {
    muonrt_set_log(nullptr, nullptr, MUONRT_LOG_OFF);
    return lines_;
  }
  /// Returns the number of lines that begin with `level` and contain all words.
  int count(const char* level, const std::vector<std::string>& words) {
    int out = 0;
    for (const std::string& line : lines()) {
      bool has = line.compare(0, 1, level) == 0;
      for (const std::string& word : words) has = has && line.find(word) != line.npos;
      out += has;
    }
    return out;
  }

 private:
  std::vector<std::string> lines_;  // the library never calls the function in two threads at once
};

void log_text(LogLevel level, const char* text) {
  log(level, [&] { return std::string(text); });
}

constexpr LogLevel kLevels[] = {LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo,
                                LogLevel::kDebug};

}  // namespace

TEST_CASE("log: only messages up to the level are made and passed on", "[unit][base]") {
  int made = 0;
  const auto log_all = [&] {
    for (const LogLevel level : kLevels) log(level, [&] { return ++made, std::string("text"); });
  };
  log_all();
  CHECK(made == 0);
  for (int limit = 0; limit <= 4; ++limit) {
    made = 0;
    LogLines messages(static_cast<enum muonrt_log_level>(limit));
    log_all();
    CHECK(made == limit);
    CHECK(std::ssize(messages.lines()) == limit);
    log_all();
    CHECK(made == limit);
  }
}

TEST_CASE("log: levels that do not exist, and calls by the function, are rejected",
          "[unit][base]") {
  for (const int32_t level : {5, 7}) {
    enum muonrt_log_level invalid;
    std::memcpy(&invalid, &level, sizeof invalid);
    CHECK(muonrt_set_log(nullptr, nullptr, invalid) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(cat("level is ", level)));
  }
  muonrt_status_t inside = MUONRT_OK;
  REQUIRE(muonrt_set_log(
              [](void* state, enum muonrt_log_level, const char*) {
                *static_cast<muonrt_status_t*>(state) =
                    muonrt_set_log(nullptr, nullptr, MUONRT_LOG_OFF);
                log_text(LogLevel::kError, "inside");
              },
              &inside, MUONRT_LOG_ERROR) == MUONRT_OK);
  log_text(LogLevel::kError, "outside");
  CHECK(inside == MUONRT_ERROR_INVALID_STATE);
  set_log([](LogLevel, const char*) { throw std::runtime_error("of the function"); },
          LogLevel::kError);
  log_text(LogLevel::kError, "does not throw");
  set_log({}, LogLevel::kOff);
}

TEST_CASE("log: after a function is replaced it is not running and not called",
          "[unit][base][tsan]") {
  struct Receiver {
    std::atomic<bool> alive{true}, inside{false};
    std::atomic<int> wrong{0}, calls{0};
  };
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!ends) log_text(LogLevel::kInfo, "text");
    });
  Receiver receivers[50];
  int wrong = 0, calls = 0;
  for (Receiver& receiver : receivers) {
    REQUIRE(muonrt_set_log(
                [](void* state, enum muonrt_log_level, const char*) {
                  auto& r = *static_cast<Receiver*>(state);
                  // Counts calls after the function was replaced, and calls that overlap.
                  if (!r.alive || r.inside.exchange(true)) ++r.wrong;
                  ++r.calls;
                  std::this_thread::yield();
                  r.inside = false;
                },
                &receiver, MUONRT_LOG_INFO) == MUONRT_OK);
    while (receiver.calls == 0) std::this_thread::yield();
    REQUIRE(muonrt_set_log(nullptr, nullptr, MUONRT_LOG_OFF) == MUONRT_OK);
    wrong += receiver.inside;
    receiver.alive = false;
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  for (const Receiver& receiver : receivers) wrong += receiver.wrong, calls += receiver.calls;
  CHECK(wrong == 0);
  CHECK(calls >= 50);
}

TEST_CASE("log: a forked child logs nothing until it sets a function", "[unit][base]") {
  static int calls;
  calls = 0;
  std::atomic<bool> holds{false}, ends{false};
  // Another thread is inside the log function during the fork.
  set_log(
      [&](LogLevel, const char*) {
        ++calls;
        holds = true;
        while (!ends) std::this_thread::yield();
      },
      LogLevel::kInfo);
  std::thread other([] { log_text(LogLevel::kInfo, "held"); });
  while (!holds) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    log_text(LogLevel::kInfo, "in the child");
    if (calls != 1) _exit(1);
    set_log([](LogLevel, const char*) { ++calls; }, LogLevel::kInfo);
    log_text(LogLevel::kInfo, "in the child");
    _exit(calls == 2 ? 0 : 2);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  ends = true;
  other.join();
  set_log({}, LogLevel::kOff);
}

TEST_CASE("log: communicators, optimizers, steps and checkpoints are logged", "[unit][base]") {
  const test_support::Folder folder;
  LogLines messages(MUONRT_LOG_DEBUG);
  world::Case c = resumed::small();
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    Files files;
    save_state(rank.optimizer(), folder.path(), {}, files);
    load_state(rank.optimizer(), folder.path(), {});
    rank.fill_gradients(1);
    if (comm.rank() == 1) reinterpret_cast<float*>(rank.grad(0).data())[0] = INFINITY;
    RANK_CHECK(rank.step_only(1, report) == Status::kSkipped);
    comm.abort(Status::kAborted, "by the test");
  });
  CHECK(messages.count("3", {"optimizer created (2 ranks, 2 parameters, 1 matrices"}) == 2);
  CHECK(messages.count("4", {"rank 1: step 1 is committed"}) == 1);
  CHECK(messages.count("3", {"saved checkpoint", folder.path(), "step 1", "bytes"}) == 2);
  CHECK(messages.count("3", {"loaded checkpoint", "manifest.json", "step 1", "bytes"}) == 2);
  CHECK(messages.count("2", {"after step 1 was skipped: a value of rank 1 for param 'w'"}) == 2);
  CHECK(messages.count(
            "1",
            {"communicator has failed (thread, 2 ranks): MUONRT_ERROR_ABORTED: by the test"}) >= 1);
}

TEST_CASE("log: rejected steps and communicators of the C ABI are logged", "[unit][base]") {
  LogLines messages(MUONRT_LOG_INFO);
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  OneMatrix trainer;
  REQUIRE(trainer.create(comm) == MUONRT_OK);
  REQUIRE(trainer.step() == MUONRT_OK);
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.lr = -1;
  CHECK(muonrt_optimizer_step(nullptr, trainer.optimizer, &args) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(messages.count("3", {"rank 0: communicator created (self, 1 rank)"}) == 1);
  CHECK(messages.count("2", {"after step 1 was rejected", "INVALID_ARGUMENT", "lr is -1"}) == 1);
  CHECK(messages.count("4", {}) == 0);
  muonrt_comm_destroy(comm);
}
