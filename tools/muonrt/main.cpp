#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "muonrt/command.hpp"
#include "muonrt/launch.hpp"

namespace {

/// What was printed is there for whoever reads it; not on a full disk, or where it was closed.
int printed(int code) {
  std::cout.flush();
  const bool fails = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout;
  if (!fails || code != 0) return code;
  std::cerr << "muonrt: the output cannot be written\n";
  return 1;
}

/// The library's version beside the command's, which it may have been linked to later.
std::string version() {
  const int32_t v = muonrt_version();
  return fmt::format("muonrt {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

/// A word where a subcommand belongs; CLI11 only says that one is missing.
void name_unknown_subcommand(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  const auto unknown = at->remaining();
  if (unknown.empty()) return;
  const bool option = unknown.front()[0] == '-';
  std::cerr << "There is no " << (option ? "option " : "subcommand ") << unknown.front() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "muonrt: the Muon optimizer over any number of ranks.\n"
      "Start it by itself (ranks are threads, --ranks N) or under mpirun.",
      "muonrt");
  app.require_subcommand(1);
  app.set_version_flag("--version", version);
  muonrt::tool::Work work;
  muonrt::tool::add_info(app, work);
  muonrt::tool::add_train(app, work);
  muonrt::tool::add_layout(app, work);
  muonrt::tool::add_plan(app, work);
  muonrt::tool::add_step(app, work);
  muonrt::tool::add_verify(app, work);
  muonrt::tool::add_bench(app, work);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Every rank reads the same arguments; one of them says what is wrong with them.
    if (muonrt::tool::launcher_rank() != 0) return e.get_exit_code() == 0 ? 0 : 2;
    if (e.get_name() == "RequiredError") name_unknown_subcommand(app);
    return printed(app.exit(e) == 0 ? 0 : 2);
  }
  try {
    return printed(work());
  } catch (const std::bad_alloc&) {
    if (muonrt::tool::launcher_rank() == 0)
      std::cerr
          << "muonrt: memory is exhausted; what was asked for is too large for this machine\n";
    return 1;
  } catch (const std::exception& e) {
    if (muonrt::tool::launcher_rank() == 0) std::cerr << "muonrt: " << e.what() << '\n';
    return 1;
  }
}
