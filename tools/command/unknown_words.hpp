#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Returns an error for the first word of a command line that is neither an option nor a
/// subcommand. The error suggests the most similar one. Returns an empty text if there is no such
/// word.
/// @param app  the command, after its parse() has failed.
std::string unknown_word(const CLI::App& app);

}  // namespace muonrt::tool
