#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "command/bench/bench_device.hpp"
#include "command/bench/bench_ns_check.hpp"
#include "command/bench/bench_ns_scene.hpp"
#include "command/bench/bench_shapes.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/bench/median.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::vector<std::string> shapes = {"128x128x4", "256x1024x1"};
  std::string dtype = "bf16";
  bool together = false;
  // For tests, by a number from 0 on: the matrix of every batch that gets a NaN; and in results
  // that are held against others, the matrix that becomes a copy of the next one, and the side of a
  // tile of the middle matrix that becomes a copy of its neighbour.
  int64_t plant_nan = -1, plant_matrix = -1, plant_tile = -1;
  std::string plant_graph;         // the provider whose replays fail
  std::vector<std::string> eager;  // providers without replays
};

Table make_table() {
  std::vector<Table::Column> columns = {{"provider", "provider", Table::Align::kLeft, 9},
                                        {"mode", "mode", Table::Align::kLeft, 7},
                                        {"rows", "rows"},
                                        {"cols", "cols"},
                                        {"count", "count"},
                                        {"form", "form", Table::Align::kLeft, 8}};
  for (const Table::Column& column : time_columns()) columns.push_back(column);
  columns.push_back({"of_alone", "of alone", Table::Align::kRight, 8});
  columns.push_back({"tflops", "TFLOP/s", Table::Align::kRight, 8});
  columns.push_back({"wrong", "#wrong"});
  return Table(columns);
}

/// Faults for tests of the check, in an eager result.
void plant(Workbench& bench, const MatrixBatch& o, const Arguments& a, bool others) {
  const auto at = [&](int64_t matrix, int64_t row, int64_t col) {
    return static_cast<unsigned char*>(o.data) +
           (matrix * o.stride + row * o.ld + col) * size_of(o.dtype);
  };
  if (a.plant_nan >= 0 && a.plant_nan < o.count)
    bench.ops().fill(bench.stream(), at(a.plant_nan, 0, 0), 0xff, size_of(o.dtype));
  if (!others) return;
  if (a.plant_matrix >= 0 && a.plant_matrix + 1 < o.count)
    bench.ops().copy(bench.stream(), at(a.plant_matrix, 0, 0), at(a.plant_matrix + 1, 0, 0),
                     o.rows * o.ld * size_of(o.dtype));
  const int64_t side = std::min(a.plant_tile, o.rows);
  for (int64_t row = 0; row < side && 2 * side <= o.cols; ++row)
    bench.ops().copy(bench.stream(), at(o.count / 2, row, 0), at(o.count / 2, row, side),
                     side * size_of(o.dtype));
}

/// The whole of `bench ns`.
class NsBench {
 public:
  NsBench(const Arguments& arguments, const NewtonSchulz& settings, DType dtype,
          BenchReport& report)
      : a_(arguments),
        settings_(settings),
        dtype_(dtype),
        report_(report),
        without_graph_(arguments.eager.begin(), arguments.eager.end()) {}

  void run(const std::vector<BenchShape>& shapes) {
    list_ = present_providers(report_);
    common_ = std::make_unique<Workbench>(list_.front(), report_);
    filler_ = std::make_unique<Filler>(*common_);
    // Messages are not in f16.
    inputs_ = std::make_unique<NsInputs>(
        *common_, dtype_ == DType::kF32 ? DType::kF32 : DType::kBF16, zeros());
    const std::vector<NsJob> jobs = jobs_of(shapes);
    // Replays behind all that they replay: what fails or hangs there costs no other figure.
    for (const bool graph : {false, true})
      for (const NsJob& job : jobs) {
        if (!a_.together) inputs_->keep(job.shapes);
        measure(job, graph);
      }
  }

 private:
  bool zeros() const { return a_.values == "zeros"; }
  bool takes_gram(const BenchShape& s) const {
    return s.cols >= 2 * s.rows &&
           settings_.gram_restarts.size() + 1 < settings_.gram_list.steps.size();
  }
  NsJob job_of(const std::vector<BenchShape>& shapes, bool gram) const {
    const auto steps = static_cast<int>(settings_.list.steps.size());
    NsJob job{shapes, {}, gram};
    for (const BenchShape& s : shapes)
      job.methods.push_back(gram && takes_gram(s)
                                ? Method{Form::kGram, steps, settings_.gram_restarts}
                                : Method{Form::kStandard, steps, {}});
    return job;
  }
  std::vector<NsJob> jobs_of(const std::vector<BenchShape>& shapes) const {
    std::vector<NsJob> jobs;
    bool any_gram = false;
    for (const BenchShape& s : shapes) {
      jobs.push_back(job_of({s}, false));
      if (takes_gram(s)) jobs.push_back(job_of({s}, true));
      any_gram = any_gram || takes_gram(s);
    }
    if (!a_.together || shapes.size() < 2) return jobs;
    jobs.push_back(job_of(shapes, false));
    if (any_gram) jobs.push_back(job_of(shapes, true));
    return jobs;
  }
  /// All providers, taking turns.
  void measure(const NsJob& job, bool graph) {
    std::vector<std::unique_ptr<NsScene>> scenes;
    for (const Provider& provider : list_) {
      if (provider.plain && job.flops() > kMostPlainFlops) continue;
      if (graph && without_graph_.count(provider.name) > 0) continue;
      auto scene = on_behalf_of(named(provider, graph), [&] {
        return std::make_unique<NsScene>(provider, named(provider, graph), report_, settings_, job,
                                         *inputs_);
      });
      if (!graph || replays(*scene)) scenes.push_back(std::move(scene));
    }
    if (scenes.empty()) return;
    std::vector<TimedWork> works;
    for (const auto& s : scenes)
      works.emplace_back(
          s->bench, *filler_, [&s = *s, graph](int64_t) { graph ? s.replay() : s.enqueue(); },
          s->named);
    time_in_turns(a_, *filler_, works);
    // Held against plain loops, where they run, else against the first; a graph against itself.
    NsCheck check(zeros());
    std::vector<int64_t> bad(scenes.size());
    for (const bool plain : {true, false})
      for (size_t i = 0; i < scenes.size(); ++i)
        if (scenes[i]->named.plain == plain)
          bad[i] = on_behalf_of(scenes[i]->named.name, [&] {
            return graph ? scenes[i]->batches_replayed_otherwise() : wrong(*scenes[i], check);
          });
    for (size_t i = 0; i < scenes.size(); ++i)
      add_row(scenes[i]->provider, graph ? "graph" : "eager", job, works[i].times(), bad[i]);
  }
  /// In errors a replay has a name of its own.
  static std::string named(const Provider& provider, bool graph) {
    return provider.name + (graph ? " graph" : "");
  }
  /// Tries a graph alone, so that one that fails is known and the others go on without it.
  bool replays(NsScene& scene) {
    if (!recorder_of(scene.bench.device())) return false;
    try {
      on_behalf_of(scene.named.name, [&] {
        scene.enqueue();  // which makes what products need
        scene.replay();
        if (scene.provider == a_.plant_graph) throw Error(Status::kDevice, "planted");
        scene.bench.finish();
      });
      return true;
    } catch (const Error& error) {
      if (error.status() == Status::kTimeout) throw;
      report_.fail(error.message());
      without_graph_.insert(scene.provider);
      return false;
    }
  }
  /// Once more from a workspace of NaN.
  int64_t wrong(NsScene& scene, NsCheck& check) const {
    scene.clear();
    scene.enqueue();
    scene.bench.finish();
    for (const MatrixBatch& o : scene.results) plant(scene.bench, o, a_, check.has_seen());
    return check.wrong(scene.bench, scene.results);
  }

  void add_row(const std::string& provider, const std::string& mode, const NsJob& job,
               const Times& times, int64_t bad) {
    const bool one = job.shapes.size() == 1;
    const double middle = median_of(times.ms);
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
    std::vector<Cell> row = {cell::word(provider),
                             cell::word(mode),
                             one ? cell::count(job.shapes[0].rows) : cell::nothing(),
                             one ? cell::count(job.shapes[0].cols) : cell::nothing(),
                             cell::count(count),
                             cell::word(job.gram ? "gram" : "standard")};
    for (const Cell& time : time_cells(times)) row.push_back(time);
    row.push_back(cell::number(middle / alone, 3));
    row.push_back(cell::number(job.flops() / middle * 1e-9, 3));
    row.push_back(cell::count(bad));
    report_.add(row, bad);
  }

  const Arguments& a_;
  const NewtonSchulz& settings_;
  DType dtype_;
  BenchReport& report_;
  std::vector<Provider> list_;
  std::unique_ptr<Workbench> common_;
  std::unique_ptr<Filler> filler_;
  std::unique_ptr<NsInputs> inputs_;
  std::set<std::string> without_graph_;  // providers
  std::map<std::tuple<std::string, std::string, BenchShape, bool>, double> medians_;
};

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  providers(a);  // checks the names
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const DType dtype = dtype_named(a.dtype);
  const NewtonSchulz settings =
      make_newton_schulz(CoefficientFamily::kPolarExpress, CoefficientSettings(), dtype);
  BenchReport report(a, make_table());
  report.title = fmt::format("Newton-Schulz, {} steps, {}, {},", settings.list.steps.size(),
                             a.dtype, named_values(a));
  report.notes =
      "TFLOP/s as if all products were made in full in the standard form; #wrong elements that are "
      "not finite, matrices that are not near orthogonal, groups of 32 rows or columns that are "
      "not those of plain loops or else of the first provider, of a graph batches that differ from "
      "the eager ones";
  if (a.together)
    report.notes +=
        "\nRows without a shape: all shapes in lockstep; `of alone`: over the sum of the medians "
        "of "
        "each";
  report.fields = {{"dtype", json_text(a.dtype)},
                   {"values", json_text(a.values)},
                   {"steady_s", fmt::format("{}", a.steady)},
                   {"tune", json_text(fmt::format("{}", fmt::join(a.tune, ",")))}};
  NsBench bench(a, settings, dtype, report);
  return report.run([&] { bench.run(shapes); });
}

}  // namespace

void add_bench_ns(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("ns", "Newton-Schulz of batches of matrices, by provider");
  auto a = std::make_shared<Arguments>();
  command->add_option("--shapes", a->shapes, kShapesHelp)->delimiter(',')->capture_default_str();
  command
      ->add_option(
          "--dtype", a->dtype,
          "of the iteration: bf16, f16 (the library's Gram form on CUDA; its input is bf16) or f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
      ->capture_default_str();
  command->add_flag("--together", a->together,
                    "then all shapes at once, in lockstep, as the shapes of a chunk go");
  command->add_option("--plant-nan", a->plant_nan)->group("");
  command->add_option("--plant-matrix", a->plant_matrix)->group("");
  command->add_option("--plant-tile", a->plant_tile)->group("");
  command->add_option("--plant-graph", a->plant_graph)->group("");
  command->add_option("--eager", a->eager)->delimiter(',')->group("");
  add_product_options(*command, *a);
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] {
    check_tuning(*a);
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
