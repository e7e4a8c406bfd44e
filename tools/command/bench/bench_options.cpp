#include "command/bench/bench_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "command/validators.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

BenchShape parse(const std::string& text) {
  char rest = 0;
  long rows = 0, cols = 0, count = 1;
  const int two = std::sscanf(text.c_str(), "%ldx%ld%c", &rows, &cols, &rest);
  const int three = std::sscanf(text.c_str(), "%ldx%ldx%ld%c", &rows, &cols, &count, &rest);
  if ((two != 2 && three != 3) || rows < 1 || cols < rows || count < 1)
    throw CLI::ValidationError(
        "--shapes", text + " is not rows x columns [x how many] with the short side first");
  return {rows, cols, count};
}

}  // namespace

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
  command.add_option("--threads", a.threads, "compute threads of the host")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_iterations(command, "rounds", ", at least", a.warmup, a.iters);
  command
      .add_option("--deadline", a.deadline,
                  "seconds that the device may take for one run; after that the command "
                  "prints what it has measured and exits with status 1")
      ->check(number_between(1e-3, 1e6))
      ->capture_default_str();
  auto* const json = command.add_flag("--json", a.json, "print JSON, on one line");
  command
      .add_flag("--stream", a.stream,
                "before it each row as soon as it is measured, as a line {\"row\":{...}}")
      ->needs(json);
}

void add_product_options(CLI::App& command, DeviceArguments& a) {
  command.add_option("--shapes", a.shapes, "rows x columns [x how many], short side first")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--dtype", a.dtype,
                  "of the products: bf16, f16 or f32 (the input of ns in f16 is bf16)")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  command
      .add_option("--providers", a.providers,
                  "those to measure, such as cublaslt,sm90; a wrong name lists all")
      ->delimiter(',');
  command
      .add_option("--steady", a.steady,
                  "seconds of warm-up for each group of rows whose providers alternate, and 20 ms "
                  "of the same work before each time; 2 or 3 for a GPU's steady clocks")
      ->check(number_between(0, 600))
      ->capture_default_str();
  command
      .add_option("--reserved-sms", a.reserved_sms,
                  "SMs that persistent grids leave free, as for a communicator (8 over NCCL)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--tune", a.tune, std::string("how sm90 is launched: ") + kTuneHelp)
      ->delimiter(',');
}

std::vector<std::pair<std::string, std::string>> product_fields(const DeviceArguments& a) {
  return {{"dtype", json_text(a.dtype)},
          {"steady_s", fmt::format("{}", a.steady)},
          {"tune", json_text(fmt::format("{}", fmt::join(a.tune, ",")))}};
}

std::vector<BenchShape> bench_shapes(const std::vector<std::string>& words) {
  std::vector<BenchShape> out;
  for (const std::string& word : words) out.push_back(parse(word));
  return out;
}

}  // namespace muonrt::tool
