#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Returns an error that names the first argument that is neither an option nor a subcommand, and
/// suggests the most similar option or subcommand. Returns an empty text if there is no such
/// argument.
/// @param app  the command, after its parse() has failed.
std::string unknown_word(const CLI::App& app);

}  // namespace muonrt::tool
