#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Returns an error for the first word of a command line that is neither an option nor a
/// subcommand, with the nearest one that exists; empty if there is no such word.
/// @param app  after an error of its parse().
std::string unknown_word(const CLI::App& app);

}  // namespace muonrt::tool
