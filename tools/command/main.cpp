#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "command/command.hpp"
#include "command/info/parts.hpp"
#include "command/launch.hpp"
#include "command/unknown_words.hpp"
#include "command/validators.hpp"
#include "opt_json/output_file.hpp"
#include "show/fit.hpp"

namespace {

int printed(int code) {
  if (muonrt::tool::flush_output() || code != 0) return code;
  std::cerr << "muonrt: the output cannot be written\n";
  return 1;
}

/// Returns whether every process of a launcher would print the same text, because the subcommand
/// uses no ranks and measures nothing.
bool runs_on_rank_0_only(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  const CLI::App* const top = app.get_subcommands().front();
  return top->get_name() != "bench" && at->get_option_no_throw("--ranks") == nullptr;
}

/// Makes --memory and all options --...-bytes accept units, such as 256MiB. Rejects whole numbers
/// that do not fit into 64 bits, because CLI11 would replace them with the largest or smallest
/// number.
void complete_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().rfind("INT", 0) == 0) option->check(muonrt::tool::in_64_bits());
    const std::string name = option->get_name();
    const bool is_size = name.ends_with("-bytes") || name == "--memory";
    if (is_size) option->transform(muonrt::tool::size_with_unit());
  }
  for (CLI::App* command : app.get_subcommands({})) complete_numbers(*command);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "muonrt: the Muon optimizer over any number of ranks.\n"
      "Start it by itself (ranks are threads, --ranks N) or under mpirun.",
      "muonrt");
  app.require_subcommand(1);
  app.set_version_flag("--version", muonrt::tool::version_text);
  muonrt::tool::Work work;
  muonrt::tool::add_info(app, work);
  muonrt::tool::add_train(app, work);
  muonrt::tool::add_layout(app, work);
  muonrt::tool::add_plan(app, work);
  muonrt::tool::add_step(app, work);
  muonrt::tool::add_state(app, work);
  muonrt::tool::add_verify(app, work);
  muonrt::tool::add_bench(app, work);
  complete_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // Handled here, because CLI11 accepts --version only before a subcommand.
    const bool version = std::find(argv, argv + argc, std::string("--version")) != argv + argc;
    const bool wrong = e.get_exit_code() != 0 && !version;
    // Every rank has the same arguments, so only rank 0 prints the error.
    if (muonrt::tool::launcher_rank() != 0) return wrong ? 2 : 0;
    if (version) {
      muonrt::tool::print_fitted(muonrt::tool::version_text() + "\n");
      return printed(0);
    }
    // CLI11's own message lists unknown words in reverse order, or reports only a missing argument.
    const auto code = static_cast<CLI::ExitCodes>(e.get_exit_code());
    const bool misses =
        code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    if (const std::string unknown = misses ? muonrt::tool::unknown_word(app) : "";
        !unknown.empty()) {
      std::cerr << unknown << '\n';
      return 2;
    }
    if (wrong) return printed(app.exit(e) == 0 ? 0 : 2);
    fmt::print("{}", muonrt::tool::fitted_help(app.help(), muonrt::tool::output_width()));
    return printed(0);
  }
  if (muonrt::tool::launcher_rank() != 0 && runs_on_rank_0_only(app)) {
    // Print the message with a single write, because the ranks share the terminal.
    std::cerr << "muonrt: rank " + std::to_string(muonrt::tool::launcher_rank()) +
                     " of a launcher's processes leaves this to rank 0\n";
    return 0;
  }
  try {
    return printed(work());
  } catch (const std::bad_alloc&) {
    if (muonrt::tool::launcher_rank() == 0)
      std::cerr << "muonrt: out of memory; use smaller sizes, or a machine with more memory\n";
    return 1;
  } catch (const muonrt::tool::LaunchError& e) {
    const int rank = muonrt::tool::launcher_rank();
    std::cerr << "muonrt: " + (rank == 0 ? "" : "rank " + std::to_string(rank) + ": ") + e.what() +
                     '\n';
    return 1;
  } catch (const std::exception& e) {
    if (muonrt::tool::launcher_rank() == 0) std::cerr << "muonrt: " << e.what() << '\n';
    return 1;
  }
}
