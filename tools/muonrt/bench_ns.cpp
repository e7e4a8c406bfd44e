#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "algo/newton_schulz.hpp"
#include "backend/recorder.hpp"
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
  bool predict = false, together = false;
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
                {"mode", "mode", Table::Align::kLeft, 7},
                {"rows", "rows"},
                {"cols", "cols"},
                {"count", "count"},
                {"form", "form", Table::Align::kLeft, 8},
                {"min_ms", "min ms", Table::Align::kRight, 9},
                {"median_ms", "median ms", Table::Align::kRight, 9},
                {"predicted_ms", "H200 pred.", Table::Align::kRight, 9},
                {"of_alone", "of alone", Table::Align::kRight, 8},
                {"tflops", "TFLOP/s", Table::Align::kRight, 8},
                {"wrong", "#wrong"}});
}

double standard_flops(const BenchShape& s, int steps) {
  const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.cols);
  return static_cast<double>(s.count * steps) * (4 * m * m * n + 2 * m * m * m);
}

/// Batches that are orthogonalized in lockstep: one, or those of all shapes.
struct Job {
  std::vector<BenchShape> shapes;
  std::vector<Method> methods;  // by shape
  bool gram = false;            // where it pays
  double flops() const {
    double sum = 0;
    for (const BenchShape& s : shapes) sum += standard_flops(s, methods[0].steps);
    return sum;
  }
};

/// One provider's.
struct Scene {
  std::string provider;
  std::unique_ptr<Workbench> bench;
  std::vector<OrthogonalizeArgs> batches;
  std::vector<int64_t> space_bytes;
  Findings* findings = nullptr;
  std::vector<MatrixBatch> results;
  std::unique_ptr<Recording> recording;

  void enqueue() { results = orthogonalize(bench->ops(), bench->stream(), batches, findings); }
  void replay() { recorder_of(bench->device())->replay(bench->stream(), *recording); }
  /// Once; after a first run, which makes what products need.
  void record() {
    if (!recording)
      recording =
          record_work(*recorder_of(bench->device()), bench->stream(), [this] { enqueue(); });
  }
};

Scene make_scene(const Provider& provider, const NewtonSchulz& settings, const Job& job,
                 DType dtype) {
  Scene out;
  out.provider = provider.name;
  out.bench = std::make_unique<Workbench>(provider.make());
  Workbench& bench = *out.bench;
  for (size_t i = 0; i < job.shapes.size(); ++i) {
    const BenchShape& s = job.shapes[i];
    const int64_t ld = bench.ops().leading_dimension(s.cols, dtype);
    MatrixBatch raw{nullptr, dtype, s.rows, s.cols, ld, s.count, s.rows * ld};
    raw.data = bench.put(bench_values(3 + i, dtype, s.count * raw.stride));
    reserve(bench.ops(), settings, job.methods[i], s.rows, s.cols);
    out.space_bytes.push_back(
        newton_schulz_workspace(bench.ops(), settings, job.methods[i], s.rows, s.cols, s.count));
    out.batches.push_back(
        {&settings, &job.methods[i], raw, bench.take(out.space_bytes.back()), nullptr});
  }
  out.findings = bench.put(std::vector<Findings>(1));
  return out;
}

/// One way of a scene to run.
struct Run {
  Scene* scene;
  bool graph;
  void enqueue() const { graph ? scene->replay() : scene->enqueue(); }
  double time() const {
    if (graph) scene->record();
    return scene->bench->time_once([this] { enqueue(); });
  }
  /// Directions that are wrong, once more from a workspace of NaN.
  int64_t wrong_directions() const {
    Workbench& bench = *scene->bench;
    for (size_t i = 0; i < scene->batches.size(); ++i)
      bench.ops().fill(bench.stream(), scene->batches[i].workspace, 0xff, scene->space_bytes[i]);
    enqueue();
    bench.finish();
    int64_t out = 0;
    for (const MatrixBatch& result : scene->results) out += wrong(bench, result);
    return out;
  }
  const char* mode() const { return graph ? "graph" : "eager"; }
};

/// The whole of `bench ns`.
class NsBench {
 public:
  NsBench(const Arguments& arguments, const NewtonSchulz& settings, DType dtype)
      : a_(arguments),
        settings_(settings),
        dtype_(dtype),
        list_(arguments.predict ? providers(arguments) : present_providers(arguments)),
        described(arguments.predict ? "no device: predictions alone" : "") {}

  bool takes_gram(const BenchShape& s) const {
    return settings_.gram_bounded && s.cols >= 2 * s.rows;
  }
  void add(const Job& job) {
    if (!a_.predict) return measure(job);
    for (const Provider& provider : list_) add_row(provider.name, "", job, {}, 0);
  }
  Job job_of(const std::vector<BenchShape>& shapes, bool gram) const {
    const auto steps = static_cast<int>(settings_.list.steps.size());
    Job job{shapes, {}, gram};
    for (const BenchShape& s : shapes)
      job.methods.push_back(gram && takes_gram(s)
                                ? Method{Form::kGram, steps, settings_.gram_restarts}
                                : Method{Form::kStandard, steps, {}});
    return job;
  }

 private:
  /// All providers, taking turns.
  void measure(const Job& job) {
    std::vector<Scene> scenes;
    for (const Provider& provider : list_) {
      if (provider.plain && job.flops() > kMostPlainFlops) continue;
      scenes.push_back(make_scene(provider, settings_, job, dtype_));
    }
    std::vector<Run> ways;
    for (Scene& s : scenes) {
      if (described.empty()) described = s.bench->device().describe();
      ways.push_back({&s, false});
      if (recorder_of(s.bench->device())) ways.push_back({&s, true});
    }
    std::vector<std::function<double()>> runs;
    for (const Run& way : ways) runs.push_back([&way] { return way.time(); });
    const auto times = alternate(a_.warmup, a_.iters, runs);
    for (size_t i = 0; i < ways.size(); ++i) {
      const int64_t bad = ways[i].wrong_directions();
      total_wrong += bad;
      add_row(ways[i].scene->provider, ways[i].mode(), job, times[i], bad);
    }
  }

  double predicted(const std::string& provider, const Job& job) const {
    if (dtype_ != DType::kBF16 || job.shapes.size() > 1) return NAN;
    const BenchShape& s = job.shapes[0];
    const Method& method = job.methods[0];
    const auto products =
        predicted_products(s.rows, s.cols, s.count, method.steps,
                           method.form == Form::kGram ? &method.restarts : nullptr);
    return predicted_ms(provider, products).value_or(NAN);
  }

  /// @param times  none: predictions alone.
  void add_row(const std::string& provider, const std::string& mode, const Job& job,
               const std::vector<double>& times, int64_t bad) {
    const bool ran = !times.empty(), one = job.shapes.size() == 1;
    const double expected = predicted(provider, job);
    const double middle = ran ? median_of(times) : expected;
    double alone = NAN;
    if (one) {
      medians_[{provider, mode, job.shapes[0], job.gram}] = middle;
    } else {
      alone = 0;
      for (const BenchShape& s : job.shapes)
        alone += medians_.at({provider, mode, s, job.gram && takes_gram(s)});
    }
    int64_t count = 0;
    for (const BenchShape& s : job.shapes) count += s.count;
    table.add(
        {cell::word(provider), cell::word(mode),
         one ? cell::count(job.shapes[0].rows) : cell::nothing(),
         one ? cell::count(job.shapes[0].cols) : cell::nothing(), cell::count(count),
         cell::word(job.gram ? "gram" : "standard"),
         ran ? cell::number(*std::min_element(times.begin(), times.end()), 4) : cell::nothing(),
         ran ? cell::number(middle, 4) : cell::nothing(), cell::number(expected, 4),
         cell::number(middle / alone, 3), cell::number(job.flops() / middle * 1e-9, 3),
         ran ? cell::count(bad) : cell::nothing()});
  }

  const Arguments& a_;
  const NewtonSchulz& settings_;
  DType dtype_;
  std::vector<Provider> list_;
  std::map<std::tuple<std::string, std::string, BenchShape, bool>, double> medians_;

 public:
  Table table = make_table();
  int64_t total_wrong = 0;
  std::string described;
};

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (!a.predict) {
    if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  }
  const DType dtype = a.dtype == "f32" ? DType::kF32 : DType::kBF16;
  const NewtonSchulz settings =
      make_newton_schulz(CoefficientFamily::kPolarExpress, CoefficientSettings(), dtype);
  NsBench bench(a, settings, dtype);
  bool any_gram = false;
  for (const BenchShape& s : shapes) {
    bench.add(bench.job_of({s}, false));
    if (!bench.takes_gram(s)) continue;
    any_gram = true;
    bench.add(bench.job_of({s}, true));
  }
  if (a.together && !a.predict && shapes.size() > 1) {
    bench.add(bench.job_of(shapes, false));
    if (any_gram) bench.add(bench.job_of(shapes, true));
  }
  return finish_bench(
      a,
      fmt::format("Newton-Schulz, {} steps, {}, random values, on {}\nTFLOP/s as if all products "
                  "were made in full in the standard form; #wrong directions that are not near "
                  "orthogonal{}",
                  settings.list.steps.size(), a.dtype, bench.described,
                  a.together ? "\nRows without a shape: all shapes in lockstep; `of alone`: over "
                               "the sum of the medians of each"
                             : ""),
      {{"device", json_text(bench.described)}, {"dtype", json_text(a.dtype)}}, bench.table,
      bench.total_wrong);
}

}  // namespace

void add_bench_ns(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("ns", "Newton-Schulz of batches of matrices, by provider");
  auto a = std::make_shared<Arguments>();
  command->add_option("--shapes", a->shapes, kShapesHelp)->delimiter(',')->capture_default_str();
  command->add_option("--dtype", a->dtype, "of the iteration: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command->add_flag("--together", a->together,
                    "then all shapes at once, in lockstep, as the shapes of a chunk go");
  command->add_flag("--predict", a->predict, "what is expected of an H200; nothing runs");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
