// Runs `verify` without the other commands, because compiling all of them takes a minute. Builds
// with a sanitizer and tests on emulated processors use this program.

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
