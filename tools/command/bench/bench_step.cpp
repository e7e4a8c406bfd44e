#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <thread>

#include "command/bench/bench_options.hpp"
#include "command/bench/bench_report.hpp"
#include "command/bench/step_parts.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/plan/machine.hpp"
#include "command/progress.hpp"
#include "command/validators.hpp"
#include "command/verify/sharded.hpp"
#include "layout/parse.hpp"
#include "layout/strategies.hpp"
#include "opt_json/output_file.hpp"
#include "show/timeline.hpp"
#include "train/mesh.hpp"
#include "train/step_trace.hpp"

namespace muonrt::tool {

namespace {

constexpr double kRate = 0.02;

struct Arguments {
  int ranks = 0, warmup = 2, iters = 10, threads = 0;
  std::string shapes = "512x512x4,2048x512x2", mesh, commit = "atomic", check = "shapes";
  std::vector<std::string> strategies = {"owners"};
  ThreadLink link;
  int64_t chunk_bytes = 0;
  RunDevice where;
  std::string trace, timeline;  // names of files
  std::string machine;          // a name or a file; empty: no model
  bool json = false;
  bool traces() const { return !trace.empty() || !timeline.empty() || !machine.empty(); }
};

/// The tensors of one measurement: all matrices of one shape, all tensors of AdamW, or all tensors.
struct Group {
  std::string name;
  std::vector<ModelTensor> tensors;
};

std::vector<Group> groups_of(const std::vector<ModelTensor>& tensors) {
  std::vector<Group> out;
  for (const ModelTensor& t : tensors) {
    const std::string shape = t.muon ? fmt::format("{}", fmt::join(t.shape, "x")) : "AdamW";
    auto at = std::find_if(out.begin(), out.end(), [&](const Group& g) { return g.name == shape; });
    if (at == out.end()) at = out.insert(out.end(), {shape, {}});
    at->tensors.push_back(t);
  }
  if (out.size() > 1) out.push_back({"together", tensors});
  return out;
}

/// The values of each tensor after the first step on one rank.
using Truth = std::map<std::string, WholeTensor>;

constexpr int64_t kOneChunk = int64_t{1} << 50;  // bytes

RunSettings settings_of(const Arguments& a, const std::string& strategy = "owners") {
  RunSettings out;
  out.numerics = {"", MUONRT_DTYPE_F32, MUONRT_DTYPE_F32, MUONRT_DTYPE_BF16, 0};
  out.commit = a.commit == "eager" ? MUONRT_COMMIT_EAGER : MUONRT_COMMIT_ATOMIC;
  out.threads = a.threads;
  out.chunk_bytes = a.chunk_bytes;
  if (strategy == "one-chunk") {
    out.chunk_bytes = kOneChunk;
    out.window = 1;
  }
  if (strategy == "all-gather") out.replica_mode = MUONRT_REPLICA_MODE_EVERY_RANK;
  out.aligned = true;
  out.trace = a.traces();
  out.where = a.where;
  return out;
}

Truth make_truth(const Arguments& a, const std::vector<Group>& groups) {
  std::vector<ModelTensor> tensors;
  for (size_t g = 0; g < groups.size() && a.check != "none"; ++g) {
    if (g > 0 && g + 1 == groups.size()) continue;  // the last group contains the same tensors
    const auto& list = groups[g].tensors;
    const bool all = a.check == "all";
    tensors.insert(tensors.end(), list.begin(), all ? list.end() : list.begin() + 1);
  }
  Truth out;
  if (tensors.empty()) return out;
  RunSettings settings = settings_of(a);
  settings.threads = 0;
  Comm self = Comm::self();
  on_device(self, a.where, [&](Comm& comm) {
    Sharded alone(comm, tensors, {}, settings);
    alone.step(0, kRate);
    for (size_t t = 0; t < tensors.size(); ++t) out[tensors[t].name] = alone.whole(t);
    return 0;
  });
  return out;
}

enum Part { kStep, kLocal, kGemm, kExposed, kExchange, kEnqueue, kPartCount };
using Sample = std::array<double, kPartCount>;  // seconds

struct Counts {
  int64_t sent = 0, memory = 0, wrong = 0;
};

/// Times in milliseconds.
struct Measured {
  std::vector<double> step;                          // the slowest rank, for each iteration
  std::array<std::vector<double>, kPartCount> mean;  // the mean over the ranks, for each iteration
  Counts counts;  // the maximum over the ranks; for `wrong`, the sum
  double flops = 0;
  std::string trace;  // only on rank 0: the last steps
  PartsTable parts;   // only on rank 0: a comparison with the model

  void add(const std::vector<Sample>& ranks) {
    Sample sum = {};
    double slowest = 0;
    for (const Sample& rank : ranks) {
      slowest = std::max(slowest, rank[kStep]);
      for (size_t part = 0; part < kPartCount; ++part) sum[part] += rank[part];
    }
    step.push_back(1e3 * slowest);
    for (size_t part = 0; part < kPartCount; ++part)
      mean[part].push_back(1e3 * sum[part] / static_cast<double>(ranks.size()));
  }
};

/// Returns the FLOPs of five Newton-Schulz steps with every product computed in full: 5 (4 m^2 n +
/// 2 m^3), where m is the short side.
double full_flops(const ModelTensor& t) {
  if (!t.muon) return 0;
  const double matrices = static_cast<double>(t.matrices());
  const auto a = static_cast<double>(t.shape[t.shape.size() - 2]),
             b = static_cast<double>(t.shape.back());
  const double m = std::min(a, b), n = std::max(a, b);
  return matrices * 5 * (4 * m * m * n + 2 * m * m * m);
}

/// @param host  a communicator for host memory with the same ranks.
Measured measure(Comm& comm, Comm& host, const Arguments& a, const LayoutWords& words,
                 const Group& group, const std::string& strategy, const Truth& truth,
                 Progress& progress) {
  std::vector<TensorLayout> layouts;
  for (size_t t = 0; t < group.tensors.size() && strategy != "one-rank"; ++t)
    layouts.emplace_back(words, group.tensors[t], t);
  Sharded sharded(comm, group.tensors, layouts, settings_of(a, strategy));
  sharded.fill_gradients(0);
  Counts mine;
  Measured out;
  train::StepTrace trace;
  std::vector<StepParts> steps;  // on rank 0
  for (int i = -std::max(1, a.warmup); i < a.iters; ++i) {
    comm.barrier();
    const muonrt_step_report_t report = sharded.step_only(kRate);
    if (a.traces() && i >= a.iters - static_cast<int>(train::StepTrace::kSteps))
      trace.add(host, sharded.optimizer());
    if (!a.machine.empty() && i >= 0) {
      train::StepTrace one;
      one.add(host, sharded.optimizer());
      const std::string all = one.gather(host);
      if (comm.rank() == 0) steps.push_back(step_parts(all));
    }
    if (i == -std::max(1, a.warmup)) {
      sharded.fetch();
      for (size_t t = 0; t < group.tensors.size(); ++t) {
        const auto expected = truth.find(group.tensors[t].name);
        if (expected != truth.end()) mine.wrong += sharded.wrong_bits(t, expected->second);
      }
    }
    mine.sent = report.bytes_sent;
    const std::string at = i < 0 ? "warm-up" : fmt::format("{} of {}", i + 1, a.iters);
    progress.show(fmt::format("bench step {} {}: {}", group.name, strategy, at));
    if (i < 0) continue;
    const Sample sample = {report.seconds,         report.local_seconds,    report.gemm_seconds,
                           report.exposed_seconds, report.exchange_seconds, report.enqueue_seconds};
    std::vector<Sample> ranks(static_cast<size_t>(comm.size()));
    comm.allgather(ranks.data(), &sample, sizeof sample);
    out.add(ranks);
  }
  if (a.traces()) out.trace = trace.gather(host);
  if (!steps.empty())
    out.parts = compare_parts(steps, modelled_parts(Plan(sharded.optimizer().get()).get(),
                                                    a.machine, comm.size(), a.threads));
  mine.memory = sharded.optimizer().counters().allocated_bytes;
  std::vector<Counts> all(static_cast<size_t>(comm.size()));
  comm.allgather(all.data(), &mine, sizeof mine);
  for (const Counts& c : all) {
    out.counts.sent = std::max(out.counts.sent, c.sent);
    out.counts.memory = std::max(out.counts.memory, c.memory);
    out.counts.wrong += c.wrong;
  }
  for (const ModelTensor& t : group.tensors) out.flops += full_flops(t);
  return out;
}

/// Returns the placements that the names of the mesh dimensions select for a matrix or a stack: tp
/// shards the columns, ep shards the stack, and other sharding dimensions shard the rows.
std::vector<Placement> named_placements(const Mesh& mesh, bool stack) {
  const int rows = stack ? 1 : 0;
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  for (int d = 0; d < mesh.dims(); ++d) {
    const MeshUse use = mesh_use(mesh, d);
    const int cut = use == MeshUse::kShard             ? rows
                    : use == MeshUse::kTensor          ? rows + 1
                    : use == MeshUse::kExpert && stack ? 0
                                                       : -1;
    if (cut >= 0) out[static_cast<size_t>(d)] = {PlacementKind::kShard, cut, 1};
  }
  return out;
}

LayoutWords words_of(const train::TrainMesh& mesh) {
  LayoutWords out;
  out.mesh = mesh.text();
  out.placements = to_text(named_placements(parse_mesh(out.mesh), false));
  out.stack = to_text(named_placements(parse_mesh(out.mesh), true));
  return out;
}

std::vector<Table::Column> columns() {
  const auto number = [](const char* key, const char* head) {
    return Table::Column{key, head, Table::Align::kRight, 9};
  };
  return joined<Table::Column>(
      {{{"shape", "shape", Table::Align::kLeft, 12},
        {"tensors", "tensors"},
        {"strategy", "strategy", Table::Align::kLeft, 10}},
       range_columns(),
       {number("local_ms", "local"), number("gemm_ms", "gemm"), number("exposed_ms", "exposed"),
        number("exchange_ms", "exchange"), number("enqueue_ms", "enqueue"),
        number("local_percent", "local %"), number("gemm_percent", "gemm %"),
        number("exposed_percent", "exposed %"), number("gflops", "GFLOP/s"),
        number("rank_gflops", "of a rank"), number("times_first", "x first"),
        number("exposed_times_first", "x exposed"), number("sent_bytes", "sent"),
        number("memory_bytes", "memory")}});
}

/// @param first  the measurement of the first strategy.
void add_row(BenchReport& report, const Group& group, const std::string& strategy, int ranks,
             const Measured& first, const Measured& m) {
  const auto exposed = [](const Measured& of) { return median_of(of.mean[kExposed]); };
  std::vector<Cell> parts;
  for (const Part part : {kLocal, kGemm, kExposed, kExchange, kEnqueue})
    parts.push_back(cell::number(median_of(m.mean[part]), 2));
  for (const Part part : {kLocal, kGemm, kExposed})
    parts.push_back(cell::number(100 * median_of(m.mean[part]) / median_of(m.mean[kStep]), 1));
  const double gflops = m.flops / median_of(m.step) * 1e-6;
  report.add(joined<Cell>({{cell::word(group.name), cell::count(std::ssize(group.tensors)),
                            cell::word(strategy)},
                           range_cells(m.step),
                           parts,
                           {cell::number(gflops, 1), cell::number(gflops / ranks, 1),
                            cell::number(median_of(m.step) / median_of(first.step), 2),
                            cell::number(exposed(first) > 0 ? exposed(m) / exposed(first) : 0, 2),
                            cell::bytes(m.counts.sent), cell::bytes(m.counts.memory)}}),
             m.counts.wrong);
}

void write_trace(const Arguments& a, const std::string& row, const std::string& trace) {
  if (!a.trace.empty()) write_text_file(a.trace, trace);
  if (a.timeline.empty()) return;
  Timeline picture{row, "commit " + a.commit, {}};
  picture.spans = last_step(trace);
  write_text_file(a.timeline, picture.svg());
}

int bench(Comm& comm, Comm& host, const Arguments& a, const std::vector<Group>& groups,
          const Truth& truth) {
  std::vector<NamedFile> files;
  if (!a.trace.empty()) files.push_back({"--trace", a.trace});
  if (!a.timeline.empty()) files.push_back({"--timeline", a.timeline});
  if (comm.rank() == 0) require_writable(files, {});
  const LayoutWords words = words_of(train::TrainMesh(a.mesh, comm.size()));
  BenchReport report({a.json, false, comm.rank() != 0}, columns());
  report.title = fmt::format(
      "Steps of {} ranks, mesh {}, threads a rank: {}, commit {}, {} warm-up, {} measured,",
      comm.size(), words.mesh, a.threads > 0 ? std::to_string(a.threads) : "its processors",
      a.commit, a.warmup, a.iters);
  report.notes =
      "ms: of the slowest rank; local (packs, unpacks, commits) to enqueue: mean over ranks;\n"
      "exposed: the rest, waiting for exchanges; %: of the mean step; GFLOP/s: of all ranks, all\n"
      "products in full; x first, x exposed: median and exposed divided by the first strategy's;\n"
      "sent, memory: of the rank with most; #wrong: elements that differ from those of one rank";
  report.device = a.where.device;
  report.fields = {{"ranks", fmt::format("{}", comm.size())},
                   {"gpu_comm", json_text(a.where.cuda() ? a.where.gpu_comm : "host")},
                   {"mesh", json_text(words.mesh)},
                   {"threads", fmt::format("{}", a.threads)},
                   {"commit", json_text(a.commit)},
                   {"warmup", fmt::format("{}", a.warmup)},
                   {"iters", fmt::format("{}", a.iters)},
                   {"link_bytes_per_second", fmt::format("{}", a.link.bytes_per_second)},
                   {"link_message_seconds", fmt::format("{}", a.link.message_seconds)}};
  Progress progress(comm.rank() == 0);
  PartsReport parts;
  for (const Group& group : groups) {
    Measured first;
    for (const std::string& strategy : a.strategies) {
      const bool alone = strategy == "one-rank";
      Measured m;
      if (!alone) m = measure(comm, host, a, words, group, strategy, truth, progress);
      if (alone && comm.rank() == 0) {
        Comm self = Comm::self();
        on_device(self, a.where, [&](Comm& one) {
          m = measure(one, self, a, words, group, strategy, truth, progress);
          return 0;
        });
      }
      comm.barrier();
      progress.clear();
      if (comm.rank() != 0) continue;
      if (first.step.empty()) first = m;
      const int ranks = alone ? 1 : comm.size();
      add_row(report, group, strategy, ranks, first, m);
      if (!a.machine.empty()) parts.add(group.name, strategy, a.machine, m.parts);
      if (a.traces())
        write_trace(a,
                    fmt::format("{}, {}, {} ranks ({})", group.name, strategy, ranks, words.mesh),
                    m.trace);
    }
  }
  if (!a.machine.empty()) report.fields.emplace_back("modelled", "[" + parts.json + "]");
  const int code = report.finish();
  if (!a.json && comm.rank() == 0) fmt::print("{}", parts.text);
  return code;
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.where.device, a.json)) return skipped;
  if (!a.machine.empty()) Machine{a.machine};  // throws for an unknown name, before anything runs
  const std::vector<Group> groups = groups_of(model_tensors(a.shapes));
  const Truth truth = make_truth(a, groups);
  const int ranks = a.ranks == 0 && !under_launcher() ? 2 : a.ranks;
  return launch(
      ranks, a.where.timeout,
      [&](Comm& comm) {
        return on_device(comm, a.where,
                         [&](Comm& between) { return bench(between, comm, a, groups, truth); });
      },
      a.link);
}

}  // namespace

void add_bench_step(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("step", "time of whole steps over ranks, by kind of work");
  auto a = std::make_shared<Arguments>();
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 2)")
      ->check(CLI::Range(1, 1024));
  with_default(
      *command, "--shapes,--model", a->shapes,
      fmt::format("rows x columns x how many, or a model: {}", fmt::join(model_names(), ", ")));
  command->add_option("--mesh", a->mesh,
                      mesh_help("shards the columns of matrices", "distributes experts"));
  add_iterations(*command, "steps", "; the first is checked", a->warmup, a->iters);
  with_default(*command, "--threads", a->threads,
               "compute threads of a rank; 0: the processors it has", CLI::Range(0, 256));
  with_default(*command, "--chunk-bytes", a->chunk_bytes, "budget of a chunk (0: muonrt's default)",
               nonnegative());
  command
      ->add_option("--strategy", a->strategies,
                   "measured one after the other; owners: muonrt's default; one-chunk: without "
                   "overlap; all-gather: every rank gathers and orthogonalizes every matrix; "
                   "one-rank: without other ranks")
      ->delimiter(',')
      ->check(CLI::IsMember({"owners", "one-chunk", "all-gather", "one-rank"}))
      ->capture_default_str();
  add_link_options(*command, a->link);
  command->add_option("--machine", a->machine,
                      fmt::format("also models the step on {}, or on the machine of a file *.json "
                                  "(bench calibrate), and compares each part",
                                  machine_names()));
  with_default(*command, "--commit", a->commit, "atomic or eager",
               CLI::IsMember({"atomic", "eager"}));
  with_default(*command, "--check", a->check,
               "tensors that are compared with a single rank: one of each shape, all, or none",
               CLI::IsMember({"shapes", "all", "none"}));
  command
      ->add_option("--trace", a->trace,
                   "file for a Chrome trace (Perfetto) of the last 4 steps of the last row: all "
                   "ranks on one clock")
      ->check(file_name());
  command->add_option("--timeline", a->timeline, "file for a picture (SVG) of the last of them")
      ->check(file_name());
  add_run_device_options(*command, a->where);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: muonrt bench step --ranks 4 --shapes 768x768x4,3072x768 --iters 20");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
