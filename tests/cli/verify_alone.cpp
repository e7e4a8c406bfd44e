// Runs `verify` without the rest of the command, which takes a minute to compile. The build with a
// sanitizer and emulated processors use it.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "command/command.hpp"

int main(int argc, char** argv) {
  CLI::App app("muonrt's verify");
  muonrt::tool::Work work;
  muonrt::tool::add_verify(app, work);
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  try {
    return work();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
