#include <fmt/format.h>

#include <algorithm>

#include "host/host_device.hpp"
#include "muonrt/bench_device.hpp"
#include "muonrt/bench_scenes.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  int64_t elements = int64_t{1} << 24;
};

/// Bytes that one run of the pass leaves otherwise than the host's plain pass does.
int64_t wrong(const Arguments& a, const Provider& provider, const ElementwisePass& pass) {
  const int64_t elements = std::min<int64_t>(a.elements, int64_t{1} << 20);
  std::vector<unsigned char> results[2];
  for (const bool host : {true, false}) {
    Workbench bench(host ? host::make_host_device({1, true}) : provider.make());
    ElementwiseScene scene(bench, pass.data, elements);
    (scene.*pass.enqueue)();
    bench.finish();
    results[host] = scene.result();
  }
  int64_t out = 0;
  for (size_t i = 0; i < results[0].size(); ++i) out += results[0][i] != results[1][i];
  return out;
}

int run(Arguments a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const Provider provider = present_providers(a).front();
  Table table({{"pass", "pass", Table::Align::kLeft, 11},
               {"rows", "rows"},
               {"cols", "cols"},
               {"bytes_per_element", "B/element"},
               {"min_ms", "min ms", Table::Align::kRight, 9},
               {"median_ms", "median ms", Table::Align::kRight, 9},
               {"gbps", "GB/s", Table::Align::kRight, 8},
               {"of_copy", "of copy", Table::Align::kRight, 7},
               {"wrong", "#wrong"}});
  int64_t total = 0;
  double copy_rate = 0;
  std::string described;
  for (const ElementwisePass& pass : elementwise_passes()) {
    Workbench bench(provider.make());
    if (described.empty()) described = bench.device().describe();
    ElementwiseScene scene(bench, pass.data, a.elements);
    const auto times = bench.time(a.warmup, a.iters, [&] { (scene.*pass.enqueue)(); });
    const int64_t bad = wrong(a, provider, pass);
    const double middle = median_of(times);
    const double rate = static_cast<double>(pass.bytes * scene.elements()) / middle * 1e-6;
    if (copy_rate == 0) copy_rate = rate;
    total += bad;
    table.add({cell::word(pass.name), cell::count(scene.rows()), cell::count(scene.cols()),
               cell::count(pass.bytes),
               cell::number(*std::min_element(times.begin(), times.end()), 4),
               cell::number(middle, 4), cell::number(rate, 1), cell::number(rate / copy_rate, 3),
               cell::count(bad)});
  }
  return finish_bench(
      a,
      fmt::format("Elementwise passes over {} elements, bf16 with f32 masters, on {}\nof copy: of "
                  "the rate of a copy on the device; #wrong bytes that differ from the host's",
                  a.elements, described),
      {{"device", json_text(described)}, {"elements", fmt::format("{}", a.elements)}}, table,
      total);
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
