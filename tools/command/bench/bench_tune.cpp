#include "command/bench/bench_tune.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <map>
#include <set>

namespace muonrt::tool {

namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& there_are) {
  throw CLI::ValidationError("--tune", "there is no " + word + "; there are " + there_are);
}

/// A value by its name.
template <class T>
T one_of(const std::string& key, const std::string& name, const std::map<std::string, T>& values) {
  const auto at = values.find(name);
  if (at != values.end()) return at->second;
  std::string names;
  for (const auto& [known, value] : values) names += (names.empty() ? "" : ", ") + known;
  refuse(key + "=" + name, names);
}

int64_t rows_of(const std::string& key, const std::string& text) {
  int64_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc() || end != text.data() + text.size() || rows < 1 || rows > 1024)
    refuse(key + "=" + text, "whole numbers from 1 to 1024");
  return rows;
}

}  // namespace

Sm90Tuning read_tuning(const std::vector<std::string>& words) {
  Sm90Tuning tuning;
  const std::map<std::string, bool> switches = {{"0", false}, {"1", true}};
  using Read = std::function<void(const std::string& key, const std::string& value)>;
  const std::map<std::string, Read> keys = {
      {"pairs", [&](auto& key, auto& value) { tuning.pairs = one_of(key, value, switches); }},
      {"early", [&](auto& key, auto& value) { tuning.early = one_of(key, value, switches); }},
      {"tiles",
       [&](auto& key, auto& value) {
         tuning.tiles = one_of<Tiles>(key, value,
                                      {{"large", Tiles::kLarge},
                                       {"medium", Tiles::kMedium},
                                       {"small", Tiles::kSmall},
                                       {"wide", Tiles::kSmallWide}});
       }},
      {"slices",
       [&](auto& key, auto& value) {
         tuning.slices = one_of<int>(key, value, {{"1", 1}, {"2", 2}, {"4", 4}});
       }},
      {"raster", [&](auto& key, auto& value) { tuning.raster = rows_of(key, value); }}};
  std::set<std::string> seen;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const auto at = keys.find(key);
    if (at == keys.end() || equals == std::string::npos)
      refuse(word, "pairs=, early=, tiles=, slices= and raster=");
    if (!seen.insert(key).second)
      throw CLI::ValidationError("--tune", key + " is there twice; give it once");
    at->second(key, word.substr(equals + 1));
  }
  return tuning;
}

}  // namespace muonrt::tool
