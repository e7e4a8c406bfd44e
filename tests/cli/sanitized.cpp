// The two subcommands that run all of the library, for the build with a sanitizer: compiling the
// rest of the command there takes a minute and checks nothing.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "command/command.hpp"

int main(int argc, char** argv) {
  CLI::App app("muonrt's train and verify, under a sanitizer");
  app.require_subcommand(1);
  muonrt::tool::Work work;
  muonrt::tool::add_train(app, work);
  muonrt::tool::add_verify(app, work);
  CLI11_PARSE(app, argc, argv);
  try {
    return work();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
