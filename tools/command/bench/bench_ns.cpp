#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "algo/newton_schulz.hpp"
#include "backend/recorder.hpp"
#include "command/bench/bench_ns_check.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  bool together = false;
  std::vector<std::string> eager;  // providers without graphs
  // A fault for tests of the check: "nan", in each eager result; "matrix" or "tile", a copy of its
  // neighbor in results that are compared with others.
  std::string plant;
};

/// Batches that are orthogonalized in lockstep: one, or those of all shapes.
struct Job {
  std::vector<BenchShape> shapes;
  std::vector<Method> methods;  // by shape
  bool gram = false;            // for the shapes for which it pays

  /// In the standard form, with every product in full.
  double flops() const {
    double sum = 0;
    for (const BenchShape& s : shapes) {
      const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.cols);
      sum += static_cast<double>(s.count * methods[0].steps) * (4 * m * m * n + 2 * m * m * m);
    }
    return sum;
  }
};

/// The matrices of the shapes, made once for all providers and forms; their devices reach the same
/// memory.
struct Inputs {
  std::vector<MatrixBatch> batches;
  std::vector<Buffer> memory;

  /// @param dtype  of the messages that the matrices come from.
  Inputs(Workbench& bench, const std::vector<BenchShape>& shapes, DType dtype) {
    for (const BenchShape& s : shapes) {
      const int64_t ld = bench.ops().leading_dimension(s.cols, dtype);
      const int64_t elements = s.count * s.rows * ld;
      memory.emplace_back(bench.device(), elements * size_of(dtype));
      void* const data = memory.back().data();
      bench.put_values(data, dtype, elements, [](int64_t index) { return bench_value(3, index); });
      batches.push_back({data, dtype, s.rows, s.cols, ld, s.count, s.rows * ld});
    }
  }
};

/// One provider's run of a job.
struct Scene {
  Provider provider;
  Workbench bench;
  std::vector<OrthogonalizeArgs> batches;
  std::vector<int64_t> workspace_bytes;
  Findings* findings = nullptr;
  std::vector<MatrixBatch> results;
  std::unique_ptr<Recording> recording;

  /// @param name  of the provider, in errors.
  Scene(const Provider& from, const std::string& name, DeviceReport& report,
        const NewtonSchulz& settings, const Job& job, const Inputs& inputs)
      : provider(from), bench(from, name, report) {
    for (size_t i = 0; i < job.shapes.size(); ++i) {
      const BenchShape& s = job.shapes[i];
      const Method& method = job.methods[i];
      reserve(bench.ops(), settings, method, s.rows, s.cols);
      workspace_bytes.push_back(
          newton_schulz_workspace(bench.ops(), settings, method, s.rows, s.cols, s.count));
      batches.push_back(
          {&settings, &method, inputs.batches[i], bench.take(workspace_bytes.back()), nullptr});
    }
    findings = bench.put(std::vector<Findings>(1));
  }
  void enqueue() { results = orthogonalize(bench.ops(), bench.stream(), batches, findings); }
  /// Records the work at the first call, which an `enqueue` must precede.
  void replay() {
    Recorder& recorder = *recorder_of(bench.device());
    if (!recording) recording = record_work(recorder, bench.stream(), [this] { enqueue(); });
    recorder.replay(bench.stream(), *recording);
  }
  /// Fills all workspaces, and so the results, with NaN.
  void clear() {
    for (size_t i = 0; i < batches.size(); ++i)
      bench.ops().fill(bench.stream(), batches[i].workspace, 0xff, workspace_bytes[i]);
  }
  std::vector<uint64_t> hashes() {
    bench.finish();
    std::vector<uint64_t> out;
    for (const MatrixBatch& o : results)
      out.push_back(bench.hash(o.data, o.count * o.stride * size_of(o.dtype)));
    return out;
  }
  /// Batches whose bytes differ after a replay.
  int64_t replayed_differently() {
    clear();
    enqueue();
    const std::vector<uint64_t> expected = hashes();
    clear();
    replay();
    const std::vector<uint64_t> got = hashes();
    int64_t out = 0;
    for (size_t i = 0; i < got.size(); ++i) out += got[i] != expected[i];
    return out;
  }
  /// Plants a fault. @param compared  whether the check compares the result with another one.
  void plant(const std::string& fault, bool compared) {
    for (const MatrixBatch& o : results) {
      const auto at = [&](int64_t matrix, int64_t row, int64_t col) {
        return static_cast<unsigned char*>(o.data) +
               (matrix * o.stride + row * o.ld + col) * size_of(o.dtype);
      };
      const int64_t side = o.rows / 8;
      if (fault == "nan")
        bench.ops().fill(bench.stream(), at(o.count / 2, 0, 0), 0xff, size_of(o.dtype));
      if (fault == "matrix" && compared)
        bench.ops().copy(bench.stream(), at(0, 0, 0), at(1, 0, 0),
                         o.rows * o.ld * size_of(o.dtype));
      for (int64_t row = 0; fault == "tile" && compared && row < side; ++row)
        bench.ops().copy(bench.stream(), at(o.count / 2, row, 0), at(o.count / 2, row, side),
                         side * size_of(o.dtype));
    }
  }
};

class NsBench {
 public:
  NsBench(const Arguments& arguments, const NewtonSchulz& settings, DeviceReport& report)
      : a_(arguments),
        settings_(settings),
        report_(report),
        list_(present_providers(report)),
        common_(list_.front(), report),
        filler_(common_) {}

  void run(const std::vector<BenchShape>& shapes) {
    std::vector<std::vector<BenchShape>> groups;
    for (const BenchShape& s : shapes) groups.push_back({s});
    if (a_.together && shapes.size() > 1) groups.push_back(shapes);
    // Graphs come last, so that one that fails or hangs costs no other row.
    for (const bool graph : {false, true})
      for (const auto& group : groups) {
        if (graph && !recorder_of(common_.device())) continue;
        const Inputs inputs(common_, group, a_.dtype == "f32" ? DType::kF32 : DType::kBF16);
        measure(job_of(group, false), inputs, graph);
        if (std::any_of(group.begin(), group.end(),
                        [&](const BenchShape& s) { return takes_gram(s); }))
          measure(job_of(group, true), inputs, graph);
      }
  }

 private:
  bool takes_gram(const BenchShape& s) const {
    return s.cols >= 2 * s.rows &&
           settings_.gram_restarts.size() + 1 < settings_.gram_list.steps.size();
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
  /// All providers, alternately.
  void measure(const Job& job, const Inputs& inputs, bool graph) {
    const auto named = [&](const Provider& p) { return p.name + (graph ? " graph" : ""); };
    std::vector<std::unique_ptr<Scene>> scenes;
    std::vector<TimedWork> works;
    for (const Provider& p : list_) {
      if (p.plain && job.flops() > kMostPlainFlops) continue;
      if (graph && std::count(a_.eager.begin(), a_.eager.end(), p.name) > 0) continue;
      on_behalf_of(named(p), [&] {
        scenes.push_back(std::make_unique<Scene>(p, named(p), report_, settings_, job, inputs));
        if (graph) scenes.back()->enqueue();  // allocates what products need
      });
      Scene& scene = *scenes.back();
      works.emplace_back(
          scene.bench, filler_,
          [&scene, graph](int64_t) { graph ? scene.replay() : scene.enqueue(); }, named(p),
          p.plain);
    }
    if (scenes.empty()) return;
    time_in_turns(a_, filler_, works);
    // Results are compared with those of portable loops or else of the first provider; those of a
    // graph with its own.
    NsCheck check;
    std::vector<int64_t> bad(scenes.size());
    for (const bool plain : {true, false})
      for (size_t i = 0; i < scenes.size(); ++i)
        if (scenes[i]->provider.plain == plain)
          bad[i] = on_behalf_of(named(scenes[i]->provider), [&] {
            return graph ? scenes[i]->replayed_differently() : wrong(*scenes[i], check);
          });
    for (size_t i = 0; i < scenes.size(); ++i)
      add_row(scenes[i]->provider.name, graph ? "graph" : "eager", job, works[i].times(), bad[i]);
  }
  /// Checks one more run, from workspaces of NaN.
  int64_t wrong(Scene& scene, NsCheck& check) const {
    scene.clear();
    scene.enqueue();
    scene.bench.finish();
    scene.plant(a_.plant, check.has_seen());
    return check.wrong(scene.bench, scene.results);
  }
  void add_row(const std::string& provider, const std::string& mode, const Job& job,
               const Times& times, int64_t bad) {
    const bool one = job.shapes.size() == 1;
    int64_t count = 0;
    for (const BenchShape& s : job.shapes) count += s.count;
    report_.add(joined<Cell>({{cell::word(provider), cell::word(mode),
                               one ? cell::count(job.shapes[0].rows) : cell::nothing(),
                               one ? cell::count(job.shapes[0].cols) : cell::nothing(),
                               cell::count(count), cell::word(job.gram ? "gram" : "standard")},
                              time_cells(times),
                              {cell::number(job.flops() / median_of(times.ms) * 1e-9, 3)}}),
                bad);
  }

  const Arguments& a_;
  const NewtonSchulz& settings_;
  DeviceReport& report_;
  std::vector<Provider> list_;
  Workbench common_;
  Filler filler_;
};

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const NewtonSchulz settings = make_newton_schulz(CoefficientFamily::kPolarExpress,
                                                   CoefficientSettings(), dtype_named(a.dtype));
  DeviceReport report(a, joined<Table::Column>({{{"provider", "provider", Table::Align::kLeft, 9},
                                                 {"mode", "mode", Table::Align::kLeft, 5},
                                                 {"rows", "rows", Table::Align::kRight, 5},
                                                 {"cols", "cols", Table::Align::kRight, 5},
                                                 {"count", "count"},
                                                 {"form", "form", Table::Align::kLeft, 8}},
                                                time_columns(),
                                                {{"tflops", "TFLOP/s", Table::Align::kRight, 8}}}));
  report.title = fmt::format("Newton-Schulz, {} steps, {},", settings.list.steps.size(), a.dtype);
  report.notes =
      "TFLOP/s as if all products were computed in full in the standard form; #wrong: elements "
      "that "
      "are not finite, matrices that are not nearly orthogonal, groups of 32 rows or columns that "
      "differ from those of portable loops or else of the first provider, and batches whose graph "
      "differs from the eager run";
  if (a.together) report.notes += "\nRows without a shape: all shapes in lockstep";
  report.fields = {{"dtype", json_text(a.dtype)},
                   {"steady_s", fmt::format("{}", a.steady)},
                   {"tune", json_text(fmt::format("{}", fmt::join(a.tune, ",")))}};
  return report.run([&] { NsBench(a, settings, report).run(shapes); });
}

}  // namespace

void add_bench_ns(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("ns", "Newton-Schulz of batches of matrices, by provider");
  auto a = std::make_shared<Arguments>();
  a->shapes = {"128x128x4", "256x1024x1"};
  add_product_options(*command, *a);
  command->add_flag("--together", a->together,
                    "then all shapes at once, in lockstep, as the shapes of a chunk");
  command->add_option("--eager", a->eager, "providers that are not measured as graphs")
      ->delimiter(',');
  command->add_option("--plant", a->plant)->group("");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] {
    providers(*a);  // rejects wrong names
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
