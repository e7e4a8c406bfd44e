#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "algo/newton_schulz.hpp"
#include "muonrt/bench_device.hpp"
#include "muonrt/bench_predict.hpp"
#include "muonrt/bench_shapes.hpp"
#include "muonrt/command.hpp"
#include "muonrt/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"128x128x4", "256x1024x1"};
  std::string dtype = "bf16";
  bool predict = false;
};

constexpr double kMostPlainFlops = 1e12;  // of plain loops, which are slow

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

Table make_table() {
  return Table({{"provider", "provider", Table::Align::kLeft, 9},
                {"rows", "rows"},
                {"cols", "cols"},
                {"count", "count"},
                {"form", "form", Table::Align::kLeft, 8},
                {"min_ms", "min ms", Table::Align::kRight, 9},
                {"median_ms", "median ms", Table::Align::kRight, 9},
                {"predicted_ms", "H200 pred.", Table::Align::kRight, 9},
                {"tflops", "TFLOP/s", Table::Align::kRight, 8},
                {"wrong", "#wrong"}});
}

double standard_flops(const BenchShape& s, int steps) {
  const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.cols);
  return static_cast<double>(s.count * steps) * (4 * m * m * n + 2 * m * m * m);
}

/// @param times  none: predictions alone.
void add_row(Table& table, const std::string& provider, const BenchShape& s, const Method& method,
             bool bf16, const std::vector<double>& times, int64_t bad) {
  const bool gram = method.form == Form::kGram, ran = !times.empty();
  const auto products =
      predicted_products(s.rows, s.cols, s.count, method.steps, gram ? &method.restarts : nullptr);
  const double expected = bf16 ? predicted_ms(provider, products).value_or(NAN) : NAN;
  const double middle = ran ? median_of(times) : expected;
  table.add({cell::word(provider), cell::count(s.rows), cell::count(s.cols), cell::count(s.count),
             cell::word(gram ? "gram" : "standard"),
             ran ? cell::number(*std::min_element(times.begin(), times.end()), 4) : cell::nothing(),
             ran ? cell::number(middle, 4) : cell::nothing(), cell::number(expected, 4),
             cell::number(standard_flops(s, method.steps) / middle * 1e-9, 3),
             ran ? cell::count(bad) : cell::nothing()});
}

/// One provider's batch.
struct Scene {
  std::string provider;
  std::unique_ptr<Workbench> bench;
  MatrixBatch raw, result;
  void* space = nullptr;
  Findings* findings = nullptr;
};

Scene make_scene(const Provider& provider, const NewtonSchulz& settings, const Method& method,
                 const BenchShape& s, DType dtype, std::vector<unsigned char>& values) {
  Scene out;
  out.provider = provider.name;
  out.bench = std::make_unique<Workbench>(provider.make());
  Workbench& bench = *out.bench;
  const int64_t ld = bench.ops().leading_dimension(s.cols, dtype);
  out.raw = {nullptr, dtype, s.rows, s.cols, ld, s.count, s.rows * ld};
  if (values.empty()) values = bench_values(3, dtype, s.count * out.raw.stride);
  out.raw.data = bench.put(values);
  reserve(bench.ops(), settings, method, s.rows, s.cols);
  out.space =
      bench.take(newton_schulz_workspace(bench.ops(), settings, method, s.rows, s.cols, s.count));
  out.findings = bench.put(std::vector<Findings>(1));
  return out;
}

/// All providers, taking turns. @return  directions that are wrong.
int64_t measure(const Arguments& a, const std::vector<Provider>& providers,
                const NewtonSchulz& settings, const Method& method, const BenchShape& shape,
                DType dtype, Table& table, std::string& described) {
  std::vector<unsigned char> values;
  std::vector<Scene> scenes;
  for (const Provider& provider : providers) {
    if (provider.plain && standard_flops(shape, method.steps) > kMostPlainFlops) continue;
    scenes.push_back(make_scene(provider, settings, method, shape, dtype, values));
  }
  std::vector<std::function<double()>> runs;
  for (Scene& s : scenes) {
    if (described.empty()) described = s.bench->device().describe();
    runs.push_back([&] {
      return s.bench->time_once([&] {
        s.result = orthogonalize(s.bench->ops(), s.bench->stream(), settings, method, s.raw,
                                 s.space, s.findings);
      });
    });
  }
  const auto times = alternate(a.warmup, a.iters, runs);
  int64_t total = 0;
  for (size_t i = 0; i < scenes.size(); ++i) {
    const int64_t bad = wrong(*scenes[i].bench, scenes[i].result);
    total += bad;
    add_row(table, scenes[i].provider, shape, method, dtype == DType::kBF16, times[i], bad);
  }
  return total;
}

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (!a.predict) {
    if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  }
  const DType dtype = a.dtype == "f32" ? DType::kF32 : DType::kBF16;
  const NewtonSchulz settings =
      make_newton_schulz(CoefficientFamily::kPolarExpress, CoefficientSettings(), dtype);
  Table table = make_table();
  int64_t total = 0;
  std::string described = a.predict ? "no device: predictions alone" : "";
  const auto steps = static_cast<int>(settings.list.steps.size());
  const auto list = a.predict ? providers(a.device, a.index, a.threads)
                              : present_providers(a.device, a.index, a.threads);
  for (const BenchShape& s : shapes) {
    for (const bool gram : {false, true}) {
      if (gram && (!settings.gram_bounded || s.cols < 2 * s.rows)) continue;
      const Method method = gram ? Method{Form::kGram, steps, settings.gram_restarts}
                                 : Method{Form::kStandard, steps, {}};
      if (!a.predict) {
        total += measure(a, list, settings, method, s, dtype, table, described);
        continue;
      }
      for (const Provider& provider : list)
        add_row(table, provider.name, s, method, dtype == DType::kBF16, {}, 0);
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
  command->add_option("--shapes", a->shapes, kShapesHelp)->delimiter(',')->capture_default_str();
  command->add_option("--dtype", a->dtype, "of the iteration: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command->add_flag("--predict", a->predict, "what is expected of an H200; nothing runs");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
