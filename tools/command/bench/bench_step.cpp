#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <thread>

#include "command/bench/bench_options.hpp"
#include "command/bench/median.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/progress.hpp"
#include "command/table.hpp"
#include "command/validators.hpp"
#include "command/verify/sharded.hpp"
#include "train/mesh.hpp"

namespace muonrt::tool {

namespace {

constexpr double kRate = 0.02;

struct Arguments {
  int ranks = 0, warmup = 2, iters = 10, threads = 1, window = 3;
  std::string shapes = "512x512x4,2048x512x2", mesh, commit = "atomic", transport = "bf16";
  std::string check = "shapes";
  int64_t chunk_bytes = 0;
  RunDevice where;
  bool json = false;
};

/// What is measured together: all matrices of one shape, all that AdamW has, all there are.
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

/// By tensor: what one rank alone makes of it in a first step.
using Truth = std::map<std::string, WholeTensor>;

RunSettings settings_of(const Arguments& a) {
  const int32_t transport = a.transport == "f32" ? MUONRT_DTYPE_F32 : MUONRT_DTYPE_BF16;
  RunSettings out;
  out.numerics = {"", MUONRT_DTYPE_F32, MUONRT_DTYPE_F32, transport, 0};
  out.window = a.window;
  out.commit = a.commit == "eager" ? MUONRT_COMMIT_EAGER : MUONRT_COMMIT_ATOMIC;
  out.threads = a.threads;
  out.chunk_bytes = a.chunk_bytes;
  out.aligned = true;
  out.where = a.where;
  return out;
}

Truth make_truth(const Arguments& a, const std::vector<Group>& groups) {
  std::vector<ModelTensor> tensors;
  for (size_t g = 0; g < groups.size() && a.check != "none"; ++g) {
    if (g > 0 && g + 1 == groups.size()) continue;  // together: the same tensors again
    const auto& list = groups[g].tensors;
    const bool all = a.check == "all";
    tensors.insert(tensors.end(), list.begin(), all ? list.end() : list.begin() + 1);
  }
  Truth out;
  if (tensors.empty()) return out;
  RunSettings settings = settings_of(a);
  settings.threads = static_cast<int32_t>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  Comm self = Comm::self();
  on_device(self, a.where, [&](Comm& comm) {
    Sharded alone(comm, tensors, {}, settings);
    alone.step(0, kRate);
    for (size_t t = 0; t < tensors.size(); ++t) out[tensors[t].name] = alone.whole(t);
    return 0;
  });
  return out;
}

enum Column { kStep, kLocal, kGemm, kExposed, kExchange, kEnqueue, kColumnCount };
constexpr const char* kColumnNames[kColumnCount] = {"step",    "local",    "gemm",
                                                    "exposed", "exchange", "enqueue"};
using Sample = std::array<double, kColumnCount>;  // seconds

/// Of one rank.
struct Counts {
  int64_t sent = 0, memory = 0, wrong = 0;
};

struct Measured {
  std::vector<std::vector<Sample>> samples;  // by iteration, then rank
  Counts counts;                             // largest over ranks; wrong: sum
  double flops = 0;
};

/// Five Newton-Schulz steps with every product in full: 5 (4 m^2 n + 2 m^3), m the short side.
double plain_flops(const ModelTensor& t) {
  if (!t.muon) return 0;
  const double matrices = static_cast<double>(t.matrices());
  const auto a = static_cast<double>(t.shape[t.shape.size() - 2]),
             b = static_cast<double>(t.shape.back());
  const double m = std::min(a, b), n = std::max(a, b);
  return matrices * 5 * (4 * m * m * n + 2 * m * m * m);
}

Sample sample_of(const muonrt_report_t& r) {
  return {r.seconds,         r.local_seconds,    r.gemm_seconds,
          r.exposed_seconds, r.exchange_seconds, r.enqueue_seconds};
}

Measured measure(Comm& comm, const Arguments& a, const LayoutWords& words, const Group& group,
                 const Truth& truth, Progress& progress) {
  std::vector<TensorLayout> layouts;
  for (size_t t = 0; t < group.tensors.size(); ++t)
    layouts.emplace_back(words, group.tensors[t], t);
  Sharded sharded(comm, group.tensors, layouts, settings_of(a));
  sharded.fill_gradients(0);
  Counts mine;
  Measured out;
  for (int i = -std::max(1, a.warmup); i < a.iters; ++i) {
    comm.barrier();
    const muonrt_report_t report = sharded.step_only(kRate);
    if (i == -std::max(1, a.warmup)) {
      sharded.fetch();
      for (size_t t = 0; t < group.tensors.size(); ++t) {
        const auto expected = truth.find(group.tensors[t].name);
        if (expected != truth.end()) mine.wrong += sharded.wrong_bits(t, expected->second);
      }
    }
    mine.sent = report.bytes_sent;
    const std::string at = i < 0 ? "warm-up" : fmt::format("{} of {}", i + 1, a.iters);
    progress.show(fmt::format("bench step {}: {}", group.name, at));
    if (i < 0) continue;
    const Sample sample = sample_of(report);
    out.samples.emplace_back(static_cast<size_t>(comm.size()));
    comm.allgather(&sample, out.samples.back().data(), sizeof sample);
  }
  mine.memory = sharded.optimizer().counters().allocated_bytes;
  std::vector<Counts> all(static_cast<size_t>(comm.size()));
  comm.allgather(&mine, all.data(), sizeof mine);
  for (const Counts& c : all) {
    out.counts.sent = std::max(out.counts.sent, c.sent);
    out.counts.memory = std::max(out.counts.memory, c.memory);
    out.counts.wrong += c.wrong;
  }
  for (const ModelTensor& t : group.tensors) out.flops += plain_flops(t);
  return out;
}

/// Milliseconds of every iteration: of its slowest rank, and the mean over ranks.
std::vector<double> slowest(const Measured& m, Column part) {
  std::vector<double> out;
  for (const auto& ranks : m.samples) {
    double most = 0;
    for (const Sample& s : ranks) most = std::max(most, s[part] * 1e3);
    out.push_back(most);
  }
  return out;
}

std::vector<double> rank_mean(const Measured& m, Column part) {
  std::vector<double> out;
  for (const auto& ranks : m.samples) {
    double sum = 0;
    for (const Sample& s : ranks) sum += s[part] * 1e3;
    out.push_back(sum / static_cast<double>(ranks.size()));
  }
  return out;
}

/// Every part over iterations and over ranks, for programs.
Cell details(const Measured& m) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (int p = 0; p < kColumnCount; ++p) {
    const Column part = static_cast<Column>(p);
    const auto most = slowest(m, part);
    double least_rank = 1e300, most_rank = 0;
    for (size_t r = 0; r < m.samples[0].size(); ++r) {
      std::vector<double> of_rank;
      for (const auto& ranks : m.samples) of_rank.push_back(ranks[r][part] * 1e3);
      least_rank = std::min(least_rank, median_of(of_rank));
      most_rank = std::max(most_rank, median_of(of_rank));
    }
    const auto text = [](double x) { return fmt::format("{}", x); };
    fields.emplace_back(kColumnNames[p],
                        json_object({{"min_ms", text(*std::min_element(most.begin(), most.end()))},
                                     {"median_ms", text(median_of(most))},
                                     {"max_ms", text(*std::max_element(most.begin(), most.end()))},
                                     {"mean_rank_ms", text(median_of(rank_mean(m, part)))},
                                     {"fastest_rank_ms", text(least_rank)},
                                     {"slowest_rank_ms", text(most_rank)}}));
  }
  return {"", json_object(fields)};
}

Table make_table() {
  return Table({{"shape", "shape", Table::Align::kLeft, 12},
                {"tensors", "tensors"},
                {"min_ms", "min ms", Table::Align::kRight, 8},
                {"median_ms", "median ms", Table::Align::kRight, 9},
                {"max_ms", "max ms", Table::Align::kRight, 8},
                {"local_ms", "local", Table::Align::kRight, 8},
                {"gemm_ms", "gemm", Table::Align::kRight, 8},
                {"exposed_ms", "exposed", Table::Align::kRight, 8},
                {"exchange_ms", "exchange", Table::Align::kRight, 8},
                {"enqueue_ms", "enqueue", Table::Align::kRight, 8},
                {"gflops", "GFLOP/s", Table::Align::kRight, 8},
                {"sent_bytes", "sent", Table::Align::kRight, 9},
                {"memory_bytes", "memory", Table::Align::kRight, 9},
                {"wrong", "#wrong"},
                {"parts", ""}});
}

void add_row(Table& table, const Group& group, const Measured& m) {
  const std::vector<double> step = slowest(m, kStep);
  const double middle = median_of(step);
  const auto part = [&](Column p) { return cell::number(median_of(rank_mean(m, p)), 2); };
  table.add({cell::word(group.name), cell::count(std::ssize(group.tensors)),
             cell::number(*std::min_element(step.begin(), step.end()), 2), cell::number(middle, 2),
             cell::number(*std::max_element(step.begin(), step.end()), 2), part(kLocal),
             part(kGemm), part(kExposed), part(kExchange), part(kEnqueue),
             cell::number(middle > 0 ? m.flops / middle * 1e-6 : 0, 1), cell::bytes(m.counts.sent),
             cell::bytes(m.counts.memory), cell::count(m.counts.wrong), details(m)});
}

constexpr const char* kColumns =
    "min, median, max ms: of the slowest rank, over iterations. local (packs, unpacks, commits), "
    "gemm,\n"
    "exposed (the rest: mostly waiting for exchanges), exchange (hidden or not), enqueue (until "
    "the host only "
    "waits):\n"
    "mean over ranks, median over iterations. GFLOP/s: of all ranks, as if no symmetric half were\n"
    "saved. sent, memory: largest over ranks. #wrong: elements whose bytes are not those of one "
    "rank\n"
    "alone.\n";

LayoutWords words_of(const train::TrainMesh& mesh) {
  std::vector<std::string> names;
  for (int k = 0; k < mesh.c_mesh().ndim; ++k) names.emplace_back(mesh.c_mesh().names[k]);
  LayoutWords out;
  out.mesh = mesh.text();
  out.placements = named_placements(names, {"", {1, 1}, true, {}});
  out.stack = named_placements(names, {"", {1, 1, 1}, true, {}});
  return out;
}

int bench(Comm& comm, const Arguments& a, const std::vector<Group>& groups, const Truth& truth) {
  const bool root = comm.rank() == 0, talk = root && !a.json;
  const LayoutWords words = words_of(train::TrainMesh(a.mesh, comm.size()));
  Table table = make_table();
  if (talk) {
    fmt::print(
        "{} ranks on {}, mesh {}, {} threads a rank, window {}, commit {}, messages {}; {} "
        "warm-up, {} "
        "measured\n{}\n{}",
        comm.size(), a.where.device, words.mesh, a.threads, a.window, a.commit, a.transport,
        a.warmup, a.iters, kColumns, table.head());
    std::fflush(stdout);
  }
  Progress progress(root);
  int64_t wrong = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Measured m = measure(comm, a, words, groups[g], truth, progress);
    wrong += m.counts.wrong;
    add_row(table, groups[g], m);
    progress.clear();
    if (talk) fmt::print("{}", table.row(g));
    std::fflush(stdout);
  }
  if (root && a.json) {
    const auto text = [](int64_t x) { return fmt::format("{}", x); };
    fmt::print("{}\n", json_object({{"ranks", text(comm.size())},
                                    {"device", json_text(a.where.device)},
                                    {"link", json_text(a.where.cuda() ? a.where.link : "host")},
                                    {"mesh", json_text(words.mesh)},
                                    {"threads", text(a.threads)},
                                    {"window", text(a.window)},
                                    {"commit", json_text(a.commit)},
                                    {"transport", json_text(a.transport)},
                                    {"warmup", text(a.warmup)},
                                    {"iters", text(a.iters)},
                                    {"wrong", text(wrong)},
                                    {"rows", table.json()}}));
  }
  return wrong > 0 ? 1 : 0;
}

int run(const Arguments& a) {
  if (const int skipped = skip_without_gpu(a.where.device, a.json)) return skipped;
  const std::vector<Group> groups = groups_of(model_tensors(a.shapes));
  const Truth truth = make_truth(a, groups);
  const int ranks = a.ranks == 0 && !under_launcher() ? 2 : a.ranks;
  return launch(ranks, a.where.timeout, [&](Comm& comm) {
    return on_device(comm, a.where,
                     [&](Comm& between) { return bench(between, a, groups, truth); });
  });
}

}  // namespace

void add_bench_step(CLI::App& bench, Work& work) {
  auto* command =
      bench.add_subcommand("step", "whole steps over ranks, and what their time goes to");
  auto a = std::make_shared<Arguments>();
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 2)")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option(
          "--shapes,--model", a->shapes,
          fmt::format("rows x columns x how many, or a model: {}", fmt::join(model_names(), ", ")))
      ->capture_default_str();
  command->add_option(
      "--mesh", a->mesh,
      "name=size,...: fsdp and shard cut the rows of matrices, tp their columns, ep "
      "hands out experts, every other name replicates");
  add_iterations(*command, "steps", "; the first is checked", a->warmup, a->iters);
  command->add_option("--threads", a->threads, "compute threads of a rank")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--window", a->window, "chunks in flight")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--chunk-bytes", a->chunk_bytes, "budget of a chunk (0: muonrt's default)")
      ->check(nonnegative())
      ->capture_default_str();
  command->add_option("--commit", a->commit, "atomic or eager")
      ->check(CLI::IsMember({"atomic", "eager"}))
      ->capture_default_str();
  command->add_option("--transport", a->transport, "messages: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command
      ->add_option("--check", a->check,
                   "compared with one rank alone: one tensor of each of the shapes, all, or none")
      ->check(CLI::IsMember({"shapes", "all", "none"}))
      ->capture_default_str();
  add_run_device_options(*command, a->where);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: muonrt bench step --ranks 4 --shapes 768x768x4,3072x768 --iters 20");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
