#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "algo/newton_schulz.hpp"
#include "command/bench/bench_ns_check.hpp"
#include "command/bench/bench_timer.hpp"
#include "command/bench/bench_values.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  bool grouped = false;
  int64_t chunk_bytes = 0;  // 0: no limit
  // For tests of the check: a fault to insert into results. "nan" changes each result. "matrix" and
  // "tile" overwrite a matrix or a tile with its neighbor, in results that are compared with other
  // results.
  std::string plant;
};

/// A range of `count` matrices in a batch, beginning with matrix `first`.
struct Part {
  size_t shape;
  int64_t first, count;
};
using Round = std::vector<Part>;

/// Divides the batches into rounds, as the pipeline divides the matrices of an owner into chunks. A
/// round contains at most `most` elements, or a single matrix.
std::vector<Round> rounds_of(const std::vector<BenchShape>& shapes, int64_t most) {
  std::vector<Round> out = {{}};
  int64_t elements = 0;
  for (size_t s = 0; s < shapes.size(); ++s) {
    const int64_t each = shapes[s].rows * shapes[s].cols;
    for (int64_t i = 0; i < shapes[s].count; ++i) {
      if (elements > 0 && elements + each > most) {
        out.emplace_back();
        elements = 0;
      }
      elements += each;
      Round& round = out.back();
      if (round.empty() || round.back().shape != s) round.push_back({s, i, 0});
      ++round.back().count;
    }
  }
  return out;
}

/// Batches that are orthogonalized together, iteration by iteration: one batch, or the batches of
/// all shapes.
struct Job {
  std::vector<BenchShape> shapes;
  std::vector<Method> methods;  // one for each shape
  bool gram = false;            // whether any method uses the Gram form

  /// @param if_it_pays  whether to use the Gram form for wide matrices.
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
  /// Returns the FLOPs of the standard form if every product is computed in full.
  double flops() const {
    double sum = 0;
    for (const BenchShape& s : shapes) {
      const auto m = static_cast<double>(s.rows), n = static_cast<double>(s.cols);
      sum += static_cast<double>(s.count * methods[0].steps) * (4 * m * m * n + 2 * m * m * m);
    }
    return sum;
  }
};

/// The matrices of all shapes. All providers and forms use the same memory, which all of their
/// devices can access.
struct Inputs {
  std::vector<MatrixBatch> batches;
  std::vector<Buffer> memory;

  /// @param dtype  the dtype of the messages that contain the matrices.
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

/// One provider's run of a job. The rounds run one after the other in the same workspace.
struct Scene {
  Provider provider;
  Workbench bench;
  std::vector<Orthogonalization> rounds;
  int64_t workspace_bytes = 0;
  void* workspace = nullptr;
  Findings* findings = nullptr;
  std::vector<MatrixBatch> results;  // results of the last enqueued round

  Scene(const Provider& from, DeviceReport& report, const NewtonSchulz& settings, const Job& job,
        const std::vector<Round>& parts, const Inputs& inputs)
      : provider(from), bench(from, report) {
    for (size_t i = 0; i < job.shapes.size(); ++i)
      reserve(bench.ops(), settings, job.methods[i], job.shapes[i].rows, job.shapes[i].cols);
    std::vector<std::vector<int64_t>> begins;  // offsets into the workspace, for each round
    for (const Round& round : parts) {
      int64_t bytes = 0;
      begins.emplace_back();
      for (const Part& part : round) {
        const BenchShape& s = job.shapes[part.shape];
        begins.back().push_back(bytes);
        bytes += newton_schulz_workspace(bench.ops(), settings, job.methods[part.shape], s.rows,
                                         s.cols, part.count);
      }
      workspace_bytes = std::max(workspace_bytes, bytes);
    }
    workspace = bench.take(workspace_bytes);
    findings = bench.put(std::vector<Findings>(1));
    for (size_t r = 0; r < parts.size(); ++r) {
      std::vector<OrthogonalizeArgs> batches;
      for (size_t i = 0; i < parts[r].size(); ++i) {
        const Part& part = parts[r][i];
        MatrixBatch raw = inputs.batches[part.shape];
        raw.data =
            static_cast<unsigned char*>(raw.data) + part.first * raw.stride * size_of(raw.dtype);
        raw.count = part.count;
        batches.push_back({&settings, &job.methods[part.shape], raw,
                           static_cast<unsigned char*>(workspace) + begins[r][i], nullptr});
      }
      rounds.emplace_back(bench.ops(), bench.stream(), batches, findings);
    }
  }
  void enqueue(size_t round) {
    rounds[round].enqueue();
    results = rounds[round].results();
  }
  void enqueue() {
    for (size_t round = 0; round < rounds.size(); ++round) enqueue(round);
  }
  /// Fills the workspace, which contains the results, with NaN, and runs a round again, so that
  /// missing results are detected.
  void run_from_nan(size_t round) {
    bench.ops().fill(bench.stream(), workspace, 0xff, workspace_bytes);
    enqueue(round);
    bench.finish();
  }
  /// Inserts a fault. @param compared  whether the results are compared with other results; if not,
  /// the check can detect only NaN.
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

/// Measures all providers in turn.
void measure(DeviceReport& report, const std::vector<Provider>& list, const Filler& filler,
             const NewtonSchulz& settings, const Inputs& inputs, const Job& job,
             const Arguments& a) {
  std::vector<std::unique_ptr<Scene>> scenes;
  std::vector<TimedWork> works;
  const int64_t each = size_of(dtype_named(a.dtype));
  const std::vector<Round> parts =
      rounds_of(job.shapes, a.chunk_bytes > 0 ? a.chunk_bytes / each : INT64_MAX);
  for (const Provider& p : list) {
    if (p.portable && job.flops() > kMaxPortableFlops) continue;
    on_behalf_of(p.name, [&] {
      scenes.push_back(std::make_unique<Scene>(p, report, settings, job, parts, inputs));
    });
    works.emplace_back(
        scenes.back()->bench, filler, [&s = *scenes.back()](int64_t) { s.enqueue(); }, p.name,
        p.portable);
  }
  if (scenes.empty()) return;
  time_in_turns(report.arguments, filler, works);
  // The check compares results with those of the portable loops or, if these do not run, with those
  // of the first provider.
  std::vector<NsCheck> checks(parts.size());
  std::vector<int64_t> bad(scenes.size());
  for (const bool portable : {true, false})
    for (size_t i = 0; i < scenes.size(); ++i) {
      Scene& workload = *scenes[i];
      if (workload.provider.portable != portable) continue;
      on_behalf_of(workload.provider.name, [&] {
        for (size_t round = 0; round < parts.size(); ++round) {
          workload.run_from_nan(round);
          workload.plant(a.plant, checks[round].has_seen());
          bad[i] += checks[round].wrong(workload.bench, workload.results);
        }
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
  if (a.chunk_bytes > 0)
    report.notes +=
        fmt::format("\nIn rounds of at most {} bytes, as a step runs them", a.chunk_bytes);
  report.fields = product_fields(a);
  report.fields.emplace_back("chunk_bytes", fmt::format("{}", a.chunk_bytes));
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
        if (job.gram == gram) measure(report, list, filler, settings, inputs, job, a);
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
  with_default(*command, "--chunk-bytes", a->chunk_bytes,
               "divides each batch into rounds of at most this size, one after the other, as the "
               "chunks of a step do (a GPU's default: 256MiB); 0: the whole batch at once",
               nonnegative());
  command->add_option("--plant", a->plant)->group("");
  add_device_options(*command, *a);
  command->footer("Example: muonrt bench ns --device cuda --shapes 768x2048x128,4096x4096x4");
  command->callback([=, &work] {
    providers(*a);  // rejects unknown names
    work = [=] { return run(*a); };
  });
}

}  // namespace muonrt::tool
