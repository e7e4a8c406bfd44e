#include <CLI/CLI.hpp>

#include "command/command.hpp"

namespace muonrt::tool {

void add_bench(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("bench", "times, and the number of wrong results");
  command->require_subcommand(1);
  add_bench_step(*command, work);
  add_bench_exchange(*command, work);
  add_bench_gemm(*command, work);
  add_bench_ns(*command, work);
  add_bench_elementwise(*command, work);
  add_bench_calibrate(*command, work);
  command->footer("Example: muonrt bench step --ranks 4");
}

}  // namespace muonrt::tool
