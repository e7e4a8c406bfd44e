#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "algo/newton_schulz.hpp"
#include "command/bench/bench_ns_check.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  bool grouped = false;
  // A fault for tests of the check: "nan" in each result; "matrix" or "tile", a copy of its
  // neighbor in results that are compared with others.
  std::string plant;
};

/// Batches that are orthogonalized in lockstep: one, or those of all shapes.
struct Job {
  std::vector<BenchShape> shapes;
  std::vector<Method> methods;  // by shape
  bool gram = false;            // whether one of them is the Gram form

  /// @param if_it_pays  the Gram form for wide matrices.
  Job(const std::vector<BenchShape>& batches, const NewtonSchulz& settings, bool if_it_pays)
      : shapes(batches) {
    const auto steps = static_cast<int>(settings.list.steps.size());
    const bool restarts_pay = settings.gram_restarts.size() + 1 < settings.gram_list.steps.size();
    for (const BenchShape& s : shapes) {
      const bool takes_gram = if_it_pays && restarts_pay && s.cols >= 2 * s.rows;
      methods.push_back(takes_gram ? Method{Form::kGram, steps, settings.gram_restarts}
                                   : Method{Form::kStandard, steps, {}});
      gram = gram || takes_gram;
    }
  }
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

  Scene(const Provider& from, DeviceReport& report, const NewtonSchulz& settings, const Job& job,
        const Inputs& inputs)
      : provider(from), bench(from, report) {
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
  /// Runs once more, after all workspaces, and so the results, are filled with NaN.
  void run_from_nan() {
    for (size_t i = 0; i < batches.size(); ++i)
      bench.ops().fill(bench.stream(), batches[i].workspace, 0xff, workspace_bytes[i]);
    enqueue();
    bench.finish();
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

std::vector<Table::Column> columns() {
  return joined<Table::Column>({{{"provider", "provider", Table::Align::kLeft, 9},
                                 {"rows", "rows", Table::Align::kRight, 5},
                                 {"cols", "cols", Table::Align::kRight, 5},
                                 {"count", "count"},
                                 {"form", "form", Table::Align::kLeft, 8}},
                                time_columns(),
                                {{"tflops", "TFLOP/s", Table::Align::kRight, 8}}});
}

void add_row(DeviceReport& report, const std::string& provider, const Job& job, const Times& times,
             int64_t bad) {
  const bool one = job.shapes.size() == 1;
  int64_t count = 0;
  for (const BenchShape& s : job.shapes) count += s.count;
  report.add(
      joined<Cell>({{cell::word(provider), one ? cell::count(job.shapes[0].rows) : cell::nothing(),
                     one ? cell::count(job.shapes[0].cols) : cell::nothing(), cell::count(count),
                     cell::word(job.gram ? "gram" : "standard")},
                    time_cells(times),
                    {cell::number(job.flops() / median_of(times.ms) * 1e-9, 3)}}),
      bad);
}

/// All providers, alternately.
void measure(DeviceReport& report, const std::vector<Provider>& list, const Filler& filler,
             const NewtonSchulz& settings, const Inputs& inputs, const Job& job,
             const std::string& fault) {
  std::vector<std::unique_ptr<Scene>> scenes;
  std::vector<TimedWork> works;
  for (const Provider& p : list) {
    if (p.portable && job.flops() > kMaxPortableFlops) continue;
    on_behalf_of(p.name, [&] {
      scenes.push_back(std::make_unique<Scene>(p, report, settings, job, inputs));
    });
    works.emplace_back(
        scenes.back()->bench, filler, [&s = *scenes.back()](int64_t) { s.enqueue(); }, p.name,
        p.portable);
  }
  if (scenes.empty()) return;
  time_in_turns(report.arguments, filler, works);
  // Results are compared with those of portable loops, or else of the first provider.
  NsCheck check;
  std::vector<int64_t> bad(scenes.size());
  for (const bool portable : {true, false})
    for (size_t i = 0; i < scenes.size(); ++i) {
      Scene& workload = *scenes[i];
      if (workload.provider.portable != portable) continue;
      bad[i] = on_behalf_of(workload.provider.name, [&] {
        workload.run_from_nan();
        workload.plant(fault, check.has_seen());
        return check.wrong(workload.bench, workload.results);
      });
    }
  for (size_t i = 0; i < scenes.size(); ++i)
    add_row(report, scenes[i]->provider.name, job, works[i].times(), bad[i]);
}

int run(const Arguments& a) {
  const auto shapes = bench_shapes(a.shapes);
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  const NewtonSchulz settings = make_newton_schulz(CoefficientFamily::kPolarExpress,
                                                   CoefficientSettings(), dtype_named(a.dtype));
  DeviceReport report(a, columns());
  report.title = fmt::format("Newton-Schulz, {} steps, {},", settings.list.steps.size(), a.dtype);
  report.notes =
      "TFLOP/s as if all products were computed in full in the standard form; #wrong: elements\n"
      "that are not finite, matrices that are not nearly orthogonal, and groups of 32 columns\n"
      "that differ from those of portable loops or else of the first provider";
  if (a.grouped) report.notes += "\nRows without a shape: all shapes in lockstep";
  report.fields = product_fields(a);
  std::vector<std::vector<BenchShape>> groups;
  for (const BenchShape& s : shapes) groups.push_back({s});
  if (a.grouped && shapes.size() > 1) groups.push_back(shapes);
  return report.run([&] {
    const auto list = present_providers(report);
    Workbench common(list.front(), report);
    const Filler filler(common);
    for (const auto& group : groups) {
      const Inputs inputs(common, group, a.dtype == "f32" ? DType::kF32 : DType::kBF16);
      for (const bool gram : {false, true}) {
        const Job job(group, settings, gram);
        if (job.gram == gram) measure(report, list, filler, settings, inputs, job, a.plant);
      }
    }
  });
}

}  // namespace

void add_bench_ns(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("ns", "Newton-Schulz of batches of matrices, by provider");
  auto a = std::make_shared<Arguments>();
  a->shapes = {"128x128x4", "256x1024x1"};
  add_product_options(*command, *a);
  command->add_flag("--grouped", a->grouped,
                    "then all shapes at once, in lockstep, as the shapes of a chunk");
  command->add_option("--plant", a->plant)->group("");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] {
    providers(*a);  // rejects wrong names
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
