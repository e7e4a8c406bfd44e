#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muonrt::tool {

/// Returns an error message that names the first argument that is neither an option nor a
/// subcommand, and suggests the most similar one. If there is no such argument, returns an empty
/// text.
/// @param app  the command whose parse() has failed.
std::string unknown_word(const CLI::App& app);

}  // namespace muonrt::tool
