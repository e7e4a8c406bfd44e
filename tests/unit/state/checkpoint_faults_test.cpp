#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "state/background_save.hpp"
#include "state/digits.hpp"
#include "support/bits_cases.hpp"
#include "support/checkpoints.hpp"
#include "support/rank_check.hpp"
#include "support/sanitized.hpp"

// Tests faults in checkpoints: file operations that fail, damaged files, and wrong arguments.

using namespace muonrt;
using Catch::Contains;
using test_support::Folder;
using namespace resumed;

namespace {

// Only every `kEach`-th file operation is made to fail, each in a separate run.
constexpr int64_t kEach = kSanitized ? 4 : 1;

/// Makes file operation number `nth` of one rank fail. If `lasting`, all later operations fail,
/// too.
class FailingFiles : public Files {
 public:
  FailingFiles(int64_t nth, bool lasting) : left_(nth), lasting_(lasting) {}
  bool failed() const { return left_ < 0; }

 protected:
  void before(const char* operation, const std::string& path) override {
    const int64_t left = left_--;
    if (left == 0 || (left < 0 && lasting_))
      throw Error(Status::kIo, cat("planted: ", operation, " ", path));
  }

 private:
  int64_t left_;
  bool lasting_;
};

/// Blocks the creation of files until release() is called.
class WaitingFiles : public Files {
 public:
  void release() { released_.set_value(); }

 protected:
  void before(const char* operation, const std::string& path) override {
    const bool waits = std::string(operation) == "create" && path.ends_with(".safetensors.tmp");
    if (waits) is_released_.wait();
  }

 private:
  std::promise<void> released_;
  std::shared_future<void> is_released_ = released_.get_future().share();
};

}  // namespace

TEST_CASE("checkpoint: whichever operation fails, the folder has the old or the new checkpoint",
          "[unit][state]") {
  const world::Case c = small();
  const auto old = world::run([&] {
                     world::Case one = small();
                     one.steps = 1;
                     return one;
                   }())
                       .tensors;
  world::Case two = small();
  two.steps = 2;
  const auto fresh = world::run(two).tensors;
  for (const int failing : {0, 1}) {
    for (const bool lasting : {false, true}) {
      bool ended = false;
      int64_t olds = 0, news = 0;
      for (int64_t nth = 0; !ended && nth < 60; nth += kEach) {
        const Folder folder;
        const std::string path = folder.path() + "/state";
        save(c, 1, path);
        std::atomic<bool> failed = false;
        std::vector<std::string> problems(2);
        world::on_ranks(2, [&](Comm& comm) {
          comm.set_timeout_ms(60000);
          world::Rank rank(c, comm);
          run_steps(rank, 0, 2);
          FailingFiles files(comm.rank() == failing ? nth : 1000, lasting);
          const auto number = static_cast<size_t>(comm.rank());
          problems[number] =
              problem_of([&] { save_state(rank.optimizer(), path, {.with_params = true}, files); });
          if (files.failed() && comm.rank() == failing) failed = true;
          // The optimizer remains usable.
          run_steps(rank, 2, 3);
        });
        ended = !failed;
        INFO("rank " << failing << " operation " << nth << (lasting ? " and on" : "") << ": "
                     << problems[0]);
        CHECK(problems[0] == problems[1]);
        const int64_t step = parse_manifest(content(path + "/manifest.json"), "m").step;
        CHECK((step == 1 || step == 2));
        (step == 1 ? olds : news) += 1;
        if (problems[0] == "no error") CHECK(step == 2);
        if (problems[0] != "no error") CHECK_THAT(problems[0], Contains("planted"));
        const auto loaded = load(c, 0, 0, path).tensors;
        CHECK((loaded == (step == 1 ? old : fresh)));
        // The next save removes all files of the failed save.
        save(c, 2, path);
        CHECK(names_in(path).size() == 3);
      }
      CHECK(ended);
      CHECK(olds > (kSanitized ? 0 : 3));
      CHECK(news > 0);
    }
  }
}

TEST_CASE("checkpoint: the wait reports errors of a background save, and the old checkpoint stays",
          "[unit][state][tsan]") {
  const world::Case c = small();
  for (const bool lasting : {false, true}) {
    const Folder folder;
    save(c, 1, folder.path());
    std::vector<std::string> problems(2);
    world::on_ranks(2, [&](Comm& comm) {
      world::Rank rank(c, comm);
      run_steps(rank, 0, 2);
      // The operations of rank 1 are: check the probe file, create its data file, write it. The
      // third one fails.
      BackgroundSave saving(std::make_unique<FailingFiles>(comm.rank() == 1 ? 2 : 1000, lasting));
      saving.reserve(rank.optimizer(), true);
      saving.begin(rank.optimizer(), folder.path(), {.with_params = true});
      run_steps(rank, 2, 3);
      problems[static_cast<size_t>(comm.rank())] = problem_of([&] { saving.wait(); });
      RANK_CHECK(!saving.in_progress());
    });
    CHECK(problems[0] == problems[1]);
    CHECK_THAT(problems[0], Contains("rank 1") && Contains("planted: write"));
    CHECK(parse_manifest(content(folder.path() + "/manifest.json"), "m").step == 1);
    load(c, 1, 2, folder.path());
    // If the fault is lasting, removing the file also fails.
    CHECK(names_in(folder.path()).size() == (lasting ? 4 : 3));
  }
}

TEST_CASE("checkpoint: a background save writes the state at the time of save_begin",
          "[unit][state]") {
  const world::Case c = small();
  const auto expected = [&] {
    world::Case one = small();
    one.steps = 1;
    return world::run(one).tensors;
  }();
  const Folder folder;
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm);
    run_steps(rank, 0, 1);
    auto waiting = std::make_unique<WaitingFiles>();
    WaitingFiles& files = *waiting;
    BackgroundSave saving(std::move(waiting));
    saving.reserve(rank.optimizer(), true);
    saving.begin(rank.optimizer(), folder.path(), {.with_params = true});
    run_steps(rank, 1, 3);
    files.release();
    saving.wait();
  });
  CHECK((load(c, 0, 0, folder.path()).tensors == expected));
}

TEST_CASE("checkpoint: every flipped bit is detected, and the error names the file",
          "[unit][state]") {
  const Folder folder;
  save(small(), 2, folder.path());
  const std::string unchanged = problem_of([&] { load(small(), 2, 2, folder.path()); });
  REQUIRE(unchanged == "no error");
  const auto names = names_in(folder.path());
  REQUIRE(names.size() == 3);
  for (const std::string& name : names) {
    const std::string good = content(folder.path() + "/" + name);
    // Flips a different bit in each byte of a sample, because one load for every byte would take
    // too long.
    const size_t flips = kSanitized ? 15 : 60;
    for (size_t i = 0; i < good.size(); i += 1 + good.size() / flips) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1 << i % 8);
      put(folder.path() + "/" + name, bad);
      const std::string problem = problem_of([&] { load(small(), 2, 2, folder.path()); });
      INFO(name << " byte " << i);
      CHECK_THAT(problem, Contains(name) && Contains("CORRUPT"));
    }
    put(folder.path() + "/" + name, good.substr(0, good.size() - 1));
    CHECK_THAT(problem_of([&] { load(small(), 2, 2, folder.path()); }), Contains(name));
    std::filesystem::remove(folder.path() + "/" + name);
    CHECK_THAT(problem_of([&] { load(small(), 2, 2, folder.path()); }),
               Contains(name) && Contains("cannot be opened"));
    put(folder.path() + "/" + name, good);
  }
}

TEST_CASE("checkpoint: another model's state is rejected with a list, and nothing is written",
          "[unit][state]") {
  const Folder folder;
  save(small(), 2, folder.path());
  world::Case other = small(8);
  other.params[1].name = "c";
  other.settings.groups[0].momentum_dtype = DType::kBF16;
  std::vector<std::string> problems(2);
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(other, comm), untouched(other, comm);
    problems[static_cast<size_t>(comm.rank())] =
        problem_of([&] { load_state(rank.optimizer(), folder.path(), {}); });
    for (const StateKind kind : {StateKind::kMomentum, StateKind::kNormuon})
      RANK_CHECK(rank.state(0, kind) == untouched.state(0, kind));
    RANK_CHECK(rank.data(0) == untouched.data(0));
    RANK_CHECK(rank.optimizer().steps() == 0);
    run_steps(rank, 0, 1);
  });
  CHECK(problems[0] == problems[1]);
  for (const char* word : {"INVALID_ARGUMENT", "'w': its shape is [8, 5], but was [6, 5]",
                           "'w': its dtype of momentum is BF16, but was F32",
                           "'c' is not in the checkpoint", "'b' is not in the optimizer"})
    CHECK_THAT(problems[0], Contains(word));
}

TEST_CASE("checkpoint: with partial, missing state is initialized and other state is ignored",
          "[unit][state]") {
  const Folder folder;
  const auto saved = save(small(), 2, folder.path());
  world::Case other = small();
  other.params[1].name = "c";
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(other, comm);
    run_steps(rank, 0, 1);
    const std::string text = load_state(rank.optimizer(), folder.path(), {.partial = true});
    RANK_CHECK(text.find("'c' is not in the checkpoint: its state is initialized") != text.npos);
    RANK_CHECK(text.find("'b' is not in the optimizer: it is ignored") != text.npos);
    RANK_CHECK(rank.optimizer().steps() == 2);
    RANK_CHECK(rank.optimizer().updates(0) == 2);
    RANK_CHECK(rank.optimizer().updates(1) == 0);
    for (const StateKind kind : {StateKind::kMomentum, StateKind::kVariance}) {
      const auto zero = rank.state(1, kind);
      RANK_CHECK(std::all_of(zero.begin(), zero.end(), [](unsigned char b) { return b == 0; }));
    }
    // Each of the two ranks holds three of the six rows.
    const auto momentum = rank.state(0, StateKind::kMomentum);
    RANK_CHECK(std::equal(momentum.begin(), momentum.end(),
                          saved.momentum[0].begin() + comm.rank() * 3 * 5 * 4));
    run_steps(rank, 2, 3);
  });
}

TEST_CASE("checkpoint: momentum of the other kind is converted, and the notes say so",
          "[unit][state]") {
  const Folder folder;
  const auto saved = save(small(), 2, folder.path());
  world::Case heavy = small();
  heavy.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
  heavy.settings.groups[0].weight_decay = 0.25;
  const double factor = 1.0 / (1.0 - heavy.settings.groups[0].momentum);
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(heavy, comm);
    const std::string text = load_state(rank.optimizer(), folder.path(), {});
    RANK_CHECK(text.find("'w': its momentum was ema and becomes heavy_ball") != text.npos);
    RANK_CHECK(text.find("weight_decay is 0.25, and was 0.1") != text.npos);
    const auto momentum = rank.state(0, StateKind::kMomentum);
    for (size_t i = 0; i < momentum.size(); i += 4) {
      float here = 0, there = 0;
      std::memcpy(&here, momentum.data() + i, 4);
      std::memcpy(&there, saved.momentum[0].data() + comm.rank() * 3 * 5 * 4 + i, 4);
      RANK_CHECK(here == static_cast<float>(double{there} * factor));
    }
  });
}

// The following cases test the files in a folder of checkpoints, and concurrent saves.

TEST_CASE("checkpoint: a folder that the ranks do not share is rejected", "[unit][state]") {
  const Folder one, two;
  std::vector<std::string> problems(2);
  world::on_ranks(2, [&](Comm& comm) {
    const world::Case c = small();
    world::Rank rank(c, comm);
    Files files;
    problems[static_cast<size_t>(comm.rank())] = problem_of(
        [&] { save_state(rank.optimizer(), (comm.rank() ? two : one).path(), {}, files); });
  });
  CHECK(problems[0] == problems[1]);
  CHECK_THAT(problems[0], Contains("rank 1") && Contains("not shared"));
  CHECK(names_in(one.path()).empty());
  CHECK(names_in(two.path()).empty());
}

TEST_CASE("checkpoint: of two concurrent saves into one folder one fails and the other succeeds",
          "[unit][state]") {
  const world::Case c = small();
  const Folder folder;
  std::vector<std::string> problems(2);
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm), other(c, comm);
    run_steps(rank, 0, 1);
    run_steps(other, 0, 2);
    BackgroundSave saving;
    saving.reserve(rank.optimizer(), true);
    saving.begin(rank.optimizer(), folder.path(), {.with_params = true});
    Files files;
    problems[static_cast<size_t>(comm.rank())] = problem_of(
        [&] { save_state(other.optimizer(), folder.path(), {.with_params = true}, files); });
    saving.wait();
  });
  CHECK(problems[0] == problems[1]);
  CHECK_THAT(problems[0], Contains("IO") && Contains(kLockName) && Contains("is locked"));
  CHECK(parse_manifest(content(folder.path() + "/manifest.json"), "m").step == 1);
  CHECK(problem_of([&] { load(c, 0, 0, folder.path()); }) == "no error");
  // After the first save has ended, another save succeeds.
  CHECK(problem_of([&] { save(c, 2, folder.path()); }) == "no error");
  CHECK(parse_manifest(content(folder.path() + "/manifest.json"), "m").step == 2);
}

TEST_CASE("checkpoint: the last saves are kept, and only files of older saves are removed",
          "[unit][state]") {
  const std::string id = "0123456789abcdef";
  const std::vector<std::string> others = {
      "manifest-notes.txt",         "manifest-1.json",       "muonrt-config.yaml",
      "muonrt-train.log",           "muonrt-" + id,          "muonrt-" + id + "-1.safetensors",
      "muonrt-" + id + ".probe.md", "muonrt-0123.probe",     "model.safetensors",
      "manifest.json.tmp",          "muonrt-" + id + "x.tmp"};
  const std::vector<std::string> left = {
      "muonrt-" + id + ".probe", "muonrt-" + id + "-manifest.tmp",
      "muonrt-" + id + "-00003.safetensors", "muonrt-" + id + "-00003.safetensors.tmp"};
  const Folder folder;
  for (const auto& names : {others, left})
    for (const std::string& name : names) put(folder.path() + "/" + name, "x");
  std::vector<int64_t> expected, kept;  // newest first, independent of step numbers
  for (const int64_t steps : {3, 1, 2, 2, 1}) {
    save(small(), steps, folder.path(), {.with_params = true, .keep = 3});
    expected.insert(expected.begin(), steps);
    if (expected.size() > 3) expected.pop_back();
    const auto names = names_in(folder.path());
    kept.clear();
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      if (*name != "manifest.json" && !name->starts_with("manifest-0")) continue;
      kept.push_back(parse_manifest(content(folder.path() + "/" + *name), *name).step);
      CHECK(problem_of([&] { load(small(), 0, 0, folder.path(), {.manifest = *name}); }) ==
            "no error");
    }
    CHECK(kept == expected);
  }
  const auto names = names_in(folder.path());
  const auto there = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : others) CHECK((there(name) ? "" : name) == "");
  for (const std::string& name : left) CHECK((there(name) ? name : "") == "");
  CHECK(names.size() == others.size() + 3 * 3);
}

TEST_CASE("checkpoint: a damaged manifest is replaced, one of another format is not",
          "[unit][state]") {
  for (const int64_t keep : {1, 2}) {
    const Folder folder;
    const std::string path = folder.path() + "/manifest.json";
    save(small(), 1, folder.path());
    const Manifest good = parse_manifest(content(path), path);
    put(path, content(path).substr(1));
    CHECK(problem_of([&] { save(small(), 2, folder.path(), {.keep = keep}); }) == "no error");
    CHECK(parse_manifest(content(path), path).step == 2);
    CHECK(names_in(folder.path()).size() == 3);
    // This manifest has a later format and a valid checksum.
    std::string text = to_text(good);
    const std::string name = "muonrt checkpoint 1";
    text.replace(text.find(name), name.size(), "muonrt checkpoint 9");
    const std::string rest = text.substr(text.find('\n') + 1);
    text = "{\"crc32c\": \"" + digits_of(crc32c(rest.data(), rest.size()), 8) + "\",\n" + rest;
    put(path, text);
    const auto before = names_in(folder.path());
    const std::string problem =
        problem_of([&] { save(small(), 3, folder.path(), {.keep = keep}); });
    CHECK_THAT(problem, Contains("NOT_SUPPORTED") && Contains("muonrt checkpoint 9"));
    CHECK(content(path) == text);
    CHECK(names_in(folder.path()) == before);
  }
}
