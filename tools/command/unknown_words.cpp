#include "command/unknown_words.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

namespace muonrt::tool {

namespace {

/// Returns the number of edits that change `a` to `b`. An edit inserts, deletes or replaces a
/// character, or exchanges two neighbors (optimal string alignment distance).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> edits(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& best = edits[i][j] = i + j;
      if (i == 0 || j == 0) continue;
      best = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1,
                       edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) best = std::min(best, edits[i - 2][j - 2] + 1);
    }
  }
  return edits[a.size()][b.size()];
}

/// Returns the most similar name. If more than a third of the word would change, returns an empty
/// text.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string found;
  size_t least = (word.size() + 1) / 3 + 1;
  for (const std::string& name : names) {
    const size_t edits = distance(word, name);
    if (edits < least) std::tie(least, found) = std::pair(edits, name);
  }
  return found;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](auto*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

}  // namespace

std::string unknown_word(const CLI::App& app) {
  const CLI::App* at = &app;
  std::string command = app.get_name();
  while (at->remaining().empty() && !at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  if (at->remaining().empty()) return {};
  const std::string word = at->remaining().front();
  const std::string help = fmt::format("see '{} --help'", command);
  if (word[0] == '-') {
    const size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string option = word.substr(begin, word.find('=') - begin);
    std::string remedy = nearest(option, options_of(*at));
    remedy = remedy.empty() ? help : "use --" + remedy;
    // The word may be an option of the subcommand before it.
    for (const CLI::App* below : at->get_subcommands()) {
      const std::string found = nearest(option, options_of(*below));
      if (found == option || (!found.empty() && remedy == help))
        remedy = fmt::format("{} is an option of '{} {}', so write it after that",
                             found == option ? "it" : "--" + found, command, below->get_name());
    }
    return fmt::format("{}: there is no option {}; {}", command, word.substr(0, word.find('=')),
                       remedy);
  }
  const auto names = subcommands_of(*at);
  if (names.empty())
    return fmt::format("{}: the argument '{}' is not expected; {}", command, word, help);
  const std::string found = nearest(word, names);
  return fmt::format("{}: there is no subcommand {}; {}", command, word,
                     found.empty() ? help : "use " + found);
}

}  // namespace muonrt::tool
