// A simple fuzzer for compilers without libFuzzer. It derives inputs from seeds by pseudorandom
// edits, which are the same in every run. Usage: NAME RUNS SEED_FOLDER.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz/target.hpp"

namespace {

std::vector<std::string> read_seeds(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> out;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return out;
}

/// Returns words that are difficult for parsers of JSON, numbers and layouts.
std::vector<std::string> make_words() {
  std::istringstream in(R"words(-1 0 18446744073709551615 9223372036854775807 1e999 1.5 true null
      { } [ ] , : " [[[[[[[[ "": {"a": * S(0) SS(0,2) = ( ) - \u0000 \ud800)words");
  std::vector<std::string> out = {std::string(1, '\0'), "\xff"};
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string next() {
    std::string out = pick(seeds_);
    for (size_t edits = 1 + below(6); edits > 0; --edits) edit(out);
    return out;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& pick(const std::vector<std::string>& list) { return list[below(list.size())]; }

  void edit(std::string& text) {
    static const std::vector<std::string> words = make_words();
    const size_t at = below(text.size() + 1),
                 length = below(std::min<size_t>(20, text.size() - at));
    switch (below(6)) {
      case 0:
        text.erase(at, length);
        return;
      case 1:
        text.insert(at, pick(words));
        return;
      case 2:
        text.replace(at, length, pick(words));
        return;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        return;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      default:
        text += pick(seeds_).substr(0, below(60));
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<std::string> seeds = read_seeds(argv[2]);
  if (seeds.empty()) return 2;
  Mutator mutator(seeds);
  const int runs = std::atoi(argv[1]);
  for (const std::string& seed : seeds) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const unsigned char*>(seed.data()), seed.size());
  }
  for (int i = 0; i < runs; ++i) {
    const std::string input = mutator.next();
    LLVMFuzzerTestOneInput(reinterpret_cast<const unsigned char*>(input.data()), input.size());
  }
  std::printf("%d inputs\n", runs);
  return 0;
}
