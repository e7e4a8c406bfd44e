#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command/bench/bench_device.hpp"
#include "command/bench/bench_scenes.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/median.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "host/host_device.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  int64_t elements = int64_t{1} << 24;
};

/// Bytes that one run of the pass leaves otherwise than the host's plain pass does.
int64_t wrong(BenchReport& report, int64_t elements, const Provider& provider,
              const ElementwisePass& pass) {
  const Provider host = {"host", [] { return host::make_host_device({1, true}); }};
  std::vector<unsigned char> results[2];
  for (const bool reference : {true, false}) {
    Workbench bench(reference ? host : provider, report);
    ElementwiseScene scene(bench, pass.data, std::min<int64_t>(elements, int64_t{1} << 20));
    (scene.*pass.enqueue)();
    bench.finish();
    results[reference] = scene.result();
  }
  int64_t out = 0;
  for (size_t i = 0; i < results[0].size(); ++i) out += results[0][i] != results[1][i];
  return out;
}

Table make_table() {
  std::vector<Table::Column> columns = {{"pass", "pass", Table::Align::kLeft, 17},
                                        {"rows", "rows"},
                                        {"cols", "cols"},
                                        {"bytes_per_element", "B/element"}};
  for (const Table::Column& column : time_columns()) columns.push_back(column);
  columns.push_back({"gbps", "GB/s", Table::Align::kRight, 8});
  columns.push_back({"of_copy", "of copy", Table::Align::kRight, 7});
  columns.push_back({"wrong", "#wrong"});
  return Table(columns);
}

void measure(const Arguments& a, BenchReport& report) {
  const Provider provider = present_providers(report).front();
  Workbench common(provider, report);
  const Filler filler(common);
  double copy_rate = 0;
  for (const ElementwisePass& pass : elementwise_passes()) {
    Workbench bench(provider, report);
    ElementwiseScene scene(bench, pass.data, a.elements);
    std::vector<TimedWork> works;
    works.emplace_back(
        bench, filler, [&](int64_t) { (scene.*pass.enqueue)(); }, Provider{pass.name, {}});
    time_in_turns(a, filler, works);
    const Times& times = works.front().times();
    const int64_t bad = wrong(report, a.elements, provider, pass);
    const double rate =
        static_cast<double>(pass.bytes * scene.elements()) / median_of(times.ms) * 1e-6;
    if (copy_rate == 0) copy_rate = rate;
    std::vector<Cell> row = {cell::word(pass.name), cell::count(scene.rows()),
                             cell::count(scene.cols()), cell::count(pass.bytes)};
    for (const Cell& time : time_cells(times)) row.push_back(time);
    row.push_back(cell::number(rate, 1));
    row.push_back(cell::number(rate / copy_rate, 3));
    row.push_back(cell::count(bad));
    report.add(row, bad);
  }
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  BenchReport report(a, make_table());
  report.title = fmt::format(
      "Elementwise passes over about {} elements, bf16 with f32 masters but where said,",
      a.elements);
  report.notes =
      "of copy: of the rate of a copy on the device; #wrong bytes that differ from the host's";
  report.fields = {{"elements", fmt::format("{}", a.elements)}};
  return report.run([&] { measure(a, report); });
}

}  // namespace

void add_bench_elementwise(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand(
      "elementwise", "packs, scans, commits and the normalization, beside a copy");
  auto a = std::make_shared<Arguments>();
  command->add_option("--elements", a->elements, "of the parameter")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench elementwise --device cuda --elements 268435456");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
