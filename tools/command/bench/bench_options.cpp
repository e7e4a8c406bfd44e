#include "command/bench/bench_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "command/validators.hpp"
#include "opt_json/value.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

BenchShape parse(const std::string& text) {
  const std::vector<int64_t> sizes = sizes_of(text);
  if (sizes.size() < 2 || sizes.size() > 3 || sizes[1] < sizes[0])
    throw CLI::ValidationError(
        "--shapes", text + " is not rows x columns [x how many] with the short side first");
  return {sizes[0], sizes[1], sizes.size() == 3 ? sizes[2] : 1};
}

}  // namespace

void add_iterations(CLI::App& command, const std::string& of, const std::string& more, int& warmup,
                    int& iters) {
  with_default(command, "--warmup", warmup, of + " that are not measured" + more, nonnegative());
  with_default(command, "--iters", iters, of + " that are measured", positive());
}

void add_device_options(CLI::App& command, DeviceArguments& a) {
  with_default(command, "--device", a.device, "host or cuda", CLI::IsMember({"host", "cuda"}));
  with_default(command, "--threads", a.threads, "compute threads of the host", CLI::Range(1, 256));
  add_iterations(command, "rounds", ", at least", a.warmup, a.iters);
  with_default(command, "--deadline", a.deadline,
               "seconds that the device may take for one run; after that the command "
               "prints what it has measured and exits with status 1",
               number_between(1e-3, 1e6));
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
  with_default(command, "--dtype", a.dtype,
               "of the products: bf16, f16 or f32 (the input of ns in f16 is bf16)",
               CLI::IsMember({"bf16", "f16", "f32"}));
  command
      .add_option("--providers", a.providers,
                  "those to measure, such as cublaslt,sm90; a wrong name lists all")
      ->delimiter(',');
  with_default(command, "--steady", a.steady,
               "seconds of warm-up for each group of rows whose providers alternate, and 20 ms "
               "of the same work before each time; 2 or 3 for a GPU's steady clocks",
               number_between(0, 600));
  with_default(command, "--reserved-sms", a.reserved_sms,
               "SMs that persistent grids leave free, as for a communicator (8 over NCCL)",
               CLI::Range(0, 1024));
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
