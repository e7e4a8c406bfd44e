#include "command/bench/bench_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command/bench/bench_tune.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters) {
  command.add_option("--warmup", warmup, of + " that are not measured" + more)
      ->check(nonnegative())
      ->capture_default_str();
  command.add_option("--iters", iters, of + " that are measured")
      ->check(positive())
      ->capture_default_str();
}

void add_device_options(CLI::App& command, DeviceArguments& a) {
  command.add_option("--device", a.device, "host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command.add_option("--index", a.index, "which GPU")->check(nonnegative());
  command.add_option("--threads", a.threads, "compute threads of the host")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      .add_option(
          "--reserved-sms", a.reserved_sms,
          "SMs that grids which fill the GPU leave free, as for a communicator (8 over NCCL)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_iterations(command, "rounds", ", at least", a.warmup, a.iters);
  command
      .add_option("--deadline", a.deadline,
                  "seconds that the device may take for one piece of work; then what was measured "
                  "is printed, with exit status 1")
      ->check(positive())
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  auto* const json = command.add_flag("--json", a.json, "print JSON, on one line");
  command
      .add_flag("--stream", a.stream,
                "before it each row as soon as it is measured, as a line {\"row\":{...}}")
      ->needs(json);
}

void add_product_options(CLI::App& command, DeviceArguments& a) {
  command
      .add_option("--providers", a.providers,
                  "those to measure, such as cublaslt,sm90; a wrong name lists all")
      ->delimiter(',');
  command
      .add_option(
          "--steady", a.steady,
          "seconds of warm-up for each group of rows whose providers take turns, and behind "
          "it each time at the power of its own work; 2 or 3 for a GPU's steady clocks")
      ->check(nonnegative())
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  command
      .add_option(
          "--values", a.values,
          "random (normal), or zeros: no measure of speed, but of what power costs random ones")
      ->check(CLI::IsMember({"random", "zeros"}))
      ->capture_default_str();
  command.add_option("--tune", a.tune)->delimiter(',')->group("");
}

void check_tuning(const DeviceArguments& a) {
  if (a.tune.empty()) return;
  read_tuning(a.tune);
  const bool sm90 = a.providers.empty() ||
                    std::find(a.providers.begin(), a.providers.end(), "sm90") != a.providers.end();
  if (a.device != "cuda" || !sm90)
    throw CLI::ValidationError("--tune",
                               "it is for the products of sm90 on a GPU; say --device "
                               "cuda, and sm90 among the --providers");
}

std::string named_values(const DeviceArguments& a) {
  return a.values == "zeros" ? "ALL ZEROS (no measure of speed: less power than random values)"
                             : "random values";
}

}  // namespace muonrt::tool
