#include <fmt/format.h>

#include <cmath>

#include "algo/newton_schulz.hpp"
#include "muonrt/bench_device.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"128x128x4", "256x1024x1"};
  std::string dtype = "bf16";
};

struct Shape {
  int64_t m, n, count;
};

Shape parse(const std::string& text) {
  Shape out{0, 0, 1};
  if (std::sscanf(text.c_str(), "%ldx%ldx%ld", &out.m, &out.n, &out.count) < 2 || out.m < 1 ||
      out.n < out.m || out.count < 1) {
    throw CLI::ValidationError("--shapes",
                               text + " is not rows x columns x count, short side first");
  }
  return out;
}

/// Directions, of 8 drawn for each of four matrices, in which the result is not near orthogonal:
/// its singular values lie in [0.5, 1.3], so |O^T v| / |v| does.
int64_t wrong(Workbench& bench, const MatrixBatch& o) {
  int64_t out = 0;
  std::vector<unsigned char> got(static_cast<size_t>(o.rows * o.ld * size_of(o.dtype)));
  for (int64_t k = 0; k < std::min<int64_t>(o.count, 4); ++k) {
    bench.get(got.data(),
              static_cast<const unsigned char*>(o.data) + k * o.stride * size_of(o.dtype),
              std::ssize(got));
    for (uint64_t draw = 0; draw < 8; ++draw) {
      std::vector<double> image(static_cast<size_t>(o.cols));
      double before = 0, after = 0;
      for (int64_t i = 0; i < o.rows; ++i) {
        const double v = bench_value(100 + draw, i);
        before += v * v;
        for (int64_t j = 0; j < o.cols; ++j)
          image[static_cast<size_t>(j)] += v * bench_load(got.data(), o.dtype, i * o.ld + j);
      }
      for (const double x : image) after += x * x;
      const double ratio = std::sqrt(after / before);
      out += !(ratio > 0.5 && ratio < 1.3);
    }
  }
  return out;
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const DType dtype = a.dtype == "f32" ? DType::kF32 : DType::kBF16;
  const NewtonSchulz settings =
      make_newton_schulz(CoefficientFamily::kPolarExpress, CoefficientSettings(), dtype);
  Table table({{"provider", "provider", Table::Align::kLeft, 9},
               {"rows", "rows"},
               {"cols", "cols"},
               {"count", "count"},
               {"form", "form", Table::Align::kLeft, 8},
               {"min_ms", "min ms", Table::Align::kRight, 9},
               {"median_ms", "median ms", Table::Align::kRight, 9},
               {"tflops", "TFLOP/s", Table::Align::kRight, 8},
               {"wrong", "#wrong"}});
  int64_t total = 0;
  std::string described;
  const auto steps = static_cast<int>(settings.list.steps.size());
  for (const Provider& provider : present_providers(a.device, a.index, a.threads)) {
    for (const std::string& text : a.shapes) {
      const Shape s = parse(text);
      for (const bool gram : {false, true}) {
        if (gram && (!settings.gram_bounded || s.n < 2 * s.m)) continue;
        const Method method = gram ? Method{Form::kGram, steps, settings.gram_restarts}
                                   : Method{Form::kStandard, steps, {}};
        Workbench bench(provider.make());
        if (described.empty()) described = bench.device().describe();
        MatrixBatch raw;
        raw.dtype = dtype;
        raw.rows = s.m;
        raw.cols = s.n;
        raw.ld = bench.ops().leading_dimension(s.n, dtype);
        raw.count = s.count;
        raw.stride = s.m * raw.ld;
        raw.data = bench.put(bench_values(3, dtype, s.count * raw.stride));
        reserve(bench.ops(), settings, method, s.m, s.n);
        void* const space =
            bench.take(newton_schulz_workspace(bench.ops(), settings, method, s.m, s.n, s.count));
        auto* const findings = bench.put(std::vector<Findings>(1));
        MatrixBatch result;
        const auto times = bench.time(a.warmup, a.iters, [&] {
          result =
              orthogonalize(bench.ops(), bench.stream(), settings, method, raw, space, findings);
        });
        const int64_t bad = wrong(bench, result);
        const auto m = static_cast<double>(s.m), n = static_cast<double>(s.n);
        const double flops = static_cast<double>(s.count * steps) * (4 * m * m * n + 2 * m * m * m);
        const double middle = median_of(times);
        total += bad;
        table.add({cell::word(provider.name), cell::count(s.m), cell::count(s.n),
                   cell::count(s.count), cell::word(gram ? "gram" : "standard"),
                   cell::number(*std::min_element(times.begin(), times.end()), 4),
                   cell::number(middle, 4), cell::number(flops / middle * 1e-9, 3),
                   cell::count(bad)});
      }
    }
  }
  return finish_bench(
      a,
      fmt::format("Newton-Schulz, {} steps, {}, random values, on {}\nTFLOP/s as if all products "
                  "were made in full in the standard form; #wrong directions that are not near "
                  "orthogonal",
                  steps, a.dtype, described),
      {{"device", json_text(described)}, {"dtype", json_text(a.dtype)}}, table, total);
}

}  // namespace

void add_bench_ns(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("ns", "Newton-Schulz of batches of matrices, by provider");
  auto a = std::make_shared<Arguments>();
  command->add_option("--shapes", a->shapes, "rows x columns x how many, short side first")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--dtype", a->dtype, "of the iteration: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
