#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace muonrt::tool {

/// What a subcommand leaves behind when its arguments have been read: the work itself.
using Work = std::function<int()>;

// Each adds its subcommand to `app`; once parsed, `work` is set to what it does.
void add_info(CLI::App& app, Work& work);
void add_train(CLI::App& app, Work& work);

}  // namespace muonrt::tool
