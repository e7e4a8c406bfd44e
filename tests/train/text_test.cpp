#include "train/text.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/folder.hpp"

using namespace muonrt::train;

namespace {

// Returns a text whose bytes encode their position, so that the contents of a window show its
// position.
Text numbered(int64_t size) {
  Text text{"numbers", {}};
  for (int64_t i = 0; i < size; ++i) {
    text.bytes.push_back(uint8_t(i % 2 == 0 ? i / 2 % 256 : i / 512));
  }
  return text;
}

bool inside(const std::vector<uint8_t>& all, int64_t begin, int64_t end, const uint8_t* window,
            int64_t length) {
  const auto last = all.begin() + end;
  return std::search(all.begin() + begin, last, window, window + length) != last;
}

}  // namespace

TEST_CASE("train text: batches come from the training part, windows from the validation part",
          "[unit][train]") {
  const Corpus corpus(numbered(2000), 16);
  const auto& all = corpus.text().bytes;
  for (int64_t step = 0; step < 20; ++step) {
    const auto batch = corpus.train_batch(3, step, 0, 8);
    for (int64_t s = 0; s < 8; ++s) {
      CHECK(inside(all, 0, 1800, batch.data() + s * 17, 17));
      CHECK_FALSE(inside(all, 1800, 2000, batch.data() + s * 17, 17));
    }
  }
  const auto windows = corpus.validation_batch(0, 5, 5);
  for (int64_t i = 0; i < 5; ++i) CHECK(inside(all, 1800, 2000, windows.data() + i * 17, 17));
  CHECK(std::equal(windows.begin(), windows.begin() + 17, all.begin() + 1800));
  CHECK(std::equal(windows.end() - 17, windows.end(), all.end() - 17));
}

TEST_CASE("train text: a sequence depends only on seed, step and its number", "[unit][train]") {
  const Corpus corpus(numbered(50000), 32);
  for (int64_t step : {0, 1000000}) {
    const auto whole = corpus.train_batch(9, step, 0, 24);
    auto joined = corpus.train_batch(9, step, 0, 5);
    const auto rest = corpus.train_batch(9, step, 5, 19);
    joined.insert(joined.end(), rest.begin(), rest.end());
    CHECK(joined == whole);
    CHECK(whole != corpus.train_batch(9, step + 1, 0, 24));
    CHECK(whole != corpus.train_batch(10, step, 0, 24));
  }
}

TEST_CASE("train text: a text that is too short is rejected with the size it needs",
          "[unit][train]") {
  CHECK_THROWS_WITH(Corpus(numbered(300), 64), Catch::Contains("'numbers' has only 300 bytes") &&
                                                   Catch::Contains("at least 650 bytes"));
  CHECK_NOTHROW(Corpus(numbered(650), 64));
  CHECK_THROWS(Corpus(numbered(0), 1));
}

TEST_CASE("train text: a file is used unchanged", "[unit][train]") {
  const std::string content(
      "line\r\n\0\xff"
      "end",
      11);
  const test_support::Folder folder;
  const std::string path = folder.path() + "/text";
  std::ofstream(path, std::ios::binary) << content;
  const Text text = load_text(path);
  CHECK(std::string(text.bytes.begin(), text.bytes.end()) == content);
  CHECK(describe(text) == path + ", 11 bytes");
  CHECK_THROWS_WITH(load_text(path + ".none"), Catch::Contains("cannot be read"));
  CHECK_THROWS_WITH(load_text("/tmp"), Catch::Contains("'/tmp' does not exist or cannot be read"));
}

TEST_CASE("train text: the default is the King James text", "[unit][train]") {
  if (std::system("command -v bible > /dev/null") != 0) return;
  const Text text = load_text("");
  CHECK(text.bytes.size() == 4404412);
  CHECK(std::string(text.bytes.begin(), text.bytes.begin() + 60) ==
        "Ge1:1 In the beginning God created the heaven and the earth.");
}

TEST_CASE("train text: if the King James text is not installed, the default is a licence",
          "[unit][train]") {
  const std::string licence = "/usr/share/common-licenses/GPL-3";
  const char* found = std::getenv("PATH");
  const std::string path = found ? found : "";
  setenv("PATH", "/nonexistent", 1);
  if (!std::filesystem::is_regular_file(licence)) {
    CHECK_THROWS_WITH(load_text(""), Catch::Contains("no text to train on") &&
                                         Catch::Contains("install bible-kjv, or pass a file"));
    setenv("PATH", path.c_str(), 1);
    return;
  }
  const Text text = load_text("");
  setenv("PATH", path.c_str(), 1);
  CHECK(text.bytes == load_text(licence).bytes);
  CHECK_THAT(text.name, Catch::Contains("GPL"));
}
