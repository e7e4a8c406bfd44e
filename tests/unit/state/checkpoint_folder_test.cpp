#include <catch2/catch.hpp>
#include <filesystem>

#include "base/crc32c.hpp"
#include "state/background_save.hpp"
#include "state/digits.hpp"
#include "support/checkpoints.hpp"
#include "support/rank_check.hpp"

// What lies in a folder of checkpoints, and who may write there.

using namespace muonrt;
using namespace resumed;
using Catch::Contains;
using test_support::Folder;

TEST_CASE("checkpoint: a folder that the ranks do not share is refused", "[unit][state]") {
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

TEST_CASE("checkpoint: of two jobs that save into one folder one is told, the other's is there",
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
  // And once it has ended nobody is kept out.
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
  std::vector<int64_t> expected, kept;  // the newest first, whatever their steps
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

TEST_CASE("checkpoint: a damaged manifest counts as none, one of another format stays",
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
    // As a later library may write it, with its checksum.
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
