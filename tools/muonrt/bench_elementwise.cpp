#include <fmt/format.h>

#include <algorithm>

#include "host/host_device.hpp"
#include "muonrt/bench_device.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  int64_t elements = int64_t{1} << 24;
};

constexpr int64_t kCols = 4096, kStamp = 7;

/// One parameter of bf16 with a master copy and bf16 gradients, and a message for it.
struct Scene {
  std::vector<Piece> pieces;
  std::vector<int32_t> list = {0};
  ParamView view;
  ParamView* params = nullptr;
  MuonScalars* groups = nullptr;
  AdamScalars* adam = nullptr;
  Findings* findings = nullptr;
  Ballot* sum = nullptr;
  void *message = nullptr, *other = nullptr;
  int64_t elements = 0;
};

Scene make_scene(Workbench& bench, int64_t elements, bool adamw) {
  Scene s;
  s.elements = elements;
  Piece piece{};
  piece.rows = elements / kCols;
  piece.cols = kCols;
  piece.local_ld = kCols;
  piece.update_scale = 0.3f;
  s.pieces = {piece};
  s.view.param = bench.put(bench_values(1, DType::kBF16, elements));
  s.view.grad = bench.put(bench_values(2, DType::kBF16, elements));
  s.view.master = reinterpret_cast<float*>(bench.put(bench_values(3, DType::kF32, elements)));
  s.view.momentum = reinterpret_cast<float*>(bench.put(bench_values(4, DType::kF32, elements)));
  if (adamw) {
    auto variance = bench_values(5, DType::kF32, elements);
    for (int64_t i = 0; i < elements; ++i) variance[static_cast<size_t>(4 * i + 3)] &= 0x7f;
    s.view.variance = reinterpret_cast<float*>(bench.put(variance));
  }
  s.view.form = WeightForm::kMaster;
  s.view.numel = elements;
  s.view.param_dtype = s.view.grad_dtype = DType::kBF16;
  s.params = bench.put(std::vector<ParamView>{s.view});
  MuonScalars group;
  group.rate = 0.01f;
  group.decay = 0.001f;
  s.groups = bench.put(std::vector<MuonScalars>{group});
  AdamScalars adam;
  adam.rate = 0.01f;
  adam.decay = 0.001f;
  s.adam = bench.put(std::vector<AdamScalars>{adam});
  s.findings = bench.put(std::vector<Findings>(1));
  s.sum = bench.put(std::vector<Ballot>{Ballot{1, kStamp, 0, 0, 0}});
  s.message = bench.put(bench_values(6, DType::kBF16, elements));
  s.other = bench.take(2 * elements);
  return s;
}

struct Pass {
  const char* name;
  int64_t bytes;  // moved for each element
  bool adamw;
  void (*enqueue)(Workbench&, const Scene&);
};

const Pass kPasses[] = {
    {"copy", 4, false,
     [](Workbench& b, const Scene& s) {
       b.ops().copy(b.stream(), s.other, s.message, 2 * s.elements);
     }},
    {"pack", 8, false,
     [](Workbench& b, const Scene& s) {
       b.ops().pack_direction(b.stream(), s.pieces, s.params, s.groups, s.other, DType::kBF16,
                              s.findings);
     }},
    {"scan", 2, false,
     [](Workbench& b, const Scene& s) { b.ops().scan(b.stream(), s.list, s.params, s.findings); }},
    {"commit", 22, false,
     [](Workbench& b, const Scene& s) {
       b.ops().commit_muon(b.stream(), s.pieces, s.params, s.groups, s.message, DType::kBF16, s.sum,
                           1, kStamp);
     }},
    {"adamw", 28, true,
     [](Workbench& b, const Scene& s) {
       b.ops().commit_adamw(b.stream(), s.list, {}, s.params, s.adam, s.sum, 1, kStamp);
     }},
};

std::vector<unsigned char> result(Workbench& bench, const Scene& s) {
  std::vector<unsigned char> out(static_cast<size_t>(16 * s.elements));
  unsigned char* at = out.data();
  const auto add = [&](const void* from, int64_t bytes) {
    if (from) bench.get(at, from, bytes);
    at += bytes;
  };
  add(s.view.param, 2 * s.elements);
  add(s.view.master, 4 * s.elements);
  add(s.view.momentum, 4 * s.elements);
  add(s.view.variance, 4 * s.elements);
  add(s.other, 2 * s.elements);
  return out;
}

/// Bytes that one run of the pass leaves otherwise than the host's plain pass does.
int64_t wrong(const Arguments& a, const Provider& provider, const Pass& pass) {
  const int64_t elements = std::min<int64_t>(a.elements, int64_t{1} << 20);
  std::vector<unsigned char> results[2];
  for (const bool host : {true, false}) {
    Workbench bench(host ? host::make_host_device({1, true}) : provider.make());
    const Scene scene = make_scene(bench, elements, pass.adamw);
    const std::vector<unsigned char> zeros(static_cast<size_t>(2 * elements));
    bench.put(scene.other, zeros.data(), std::ssize(zeros));
    pass.enqueue(bench, scene);
    bench.finish();
    results[host] = result(bench, scene);
  }
  int64_t out = 0;
  for (size_t i = 0; i < results[0].size(); ++i) out += results[0][i] != results[1][i];
  return out;
}

int run(Arguments a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  a.elements = std::max<int64_t>(1, a.elements / kCols) * kCols;
  const Provider provider = present_providers(a.device, a.index, a.threads).front();
  Table table({{"pass", "pass", Table::Align::kLeft, 8},
               {"bytes_per_element", "B/element"},
               {"min_ms", "min ms", Table::Align::kRight, 9},
               {"median_ms", "median ms", Table::Align::kRight, 9},
               {"gbps", "GB/s", Table::Align::kRight, 8},
               {"of_copy", "of copy", Table::Align::kRight, 7},
               {"wrong", "#wrong"}});
  int64_t total = 0;
  double copy_rate = 0;
  std::string described;
  for (const Pass& pass : kPasses) {
    Workbench bench(provider.make());
    if (described.empty()) described = bench.device().describe();
    const Scene scene = make_scene(bench, a.elements, pass.adamw);
    const auto times = bench.time(a.warmup, a.iters, [&] { pass.enqueue(bench, scene); });
    const int64_t bad = wrong(a, provider, pass);
    const double middle = median_of(times);
    const double rate = static_cast<double>(pass.bytes * a.elements) / middle * 1e-6;
    if (copy_rate == 0) copy_rate = rate;
    total += bad;
    table.add({cell::word(pass.name), cell::count(pass.bytes),
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
  auto* command = bench.add_subcommand("elementwise", "packs, scans and commits, beside a copy");
  auto a = std::make_shared<Arguments>();
  command->add_option("--elements", a->elements, "of the parameter")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench elementwise --device cuda --elements 268435456");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
