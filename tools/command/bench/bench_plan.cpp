#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "command/bench/bench_options.hpp"
#include "command/command.hpp"
#include "command/plan/model_plan.hpp"
#include "command/progress.hpp"
#include "command/table.hpp"
#include "command/validators.hpp"
#include "plan/plan.hpp"

namespace muonrt::tool {

namespace {

struct Arguments {
  std::vector<std::string> models = {"kimi-k2"};
  std::string mesh = "dp=16,fsdp=8,ep=8";
  int rank = 0, warmup = 1, iters = 3;
  int64_t chunk_bytes = PlanOptions{}.chunk_bytes;
  int window = PlanOptions{}.window;
  bool json = false;
};

/// Matrices of the rank's own whose pieces do not add up to the whole, on the way there or back.
int64_t count_wrong(const std::vector<SlotPlan>& slots) {
  int64_t wrong = 0;
  for (const SlotPlan& slot : slots) {
    std::vector<int64_t> there(slot.owned.size()), back(slot.owned.size());
    for (const MatrixPiece& p : slot.gather_matrix_pieces)
      there[static_cast<size_t>(p.matrix)] += p.rows * p.cols;
    for (const MatrixPiece& p : slot.return_matrix_pieces)
      back[static_cast<size_t>(p.matrix)] += p.rows * p.cols;
    for (size_t i = 0; i < slot.owned.size(); ++i) {
      const int64_t whole = slot.owned[i].rows * slot.owned[i].cols;
      wrong += there[i] != whole || back[i] < whole || back[i] % whole != 0;
    }
  }
  return wrong;
}

struct Measured {
  std::vector<double> plan_seconds, rank_seconds;
  int64_t matrices = 0, slots = 0, pieces = 0, wrong = 0, peak = 0;
  double balance = 1;
};

Measured measure(const Arguments& a, const std::string& model, Progress& progress) {
  const Problem problem = [&] {
    PlanOptions options;
    options.chunk_bytes = a.chunk_bytes;
    options.window = a.window;
    return model_problem(model_tensors(model), a.mesh, options);
  }();
  MUONRT_REQUIRE(a.rank < problem.options.world, Status::kInvalidArgument, "--rank is ", a.rank,
                 ", but the mesh has ", problem.options.world, " ranks; give a smaller one");
  Measured out;
  for (int i = 0; i < a.warmup + a.iters; ++i) {
    progress.show(fmt::format("{}: plan {} of {}", model, i + 1, a.warmup + a.iters));
    reset_peak_memory();
    Problem copy = problem;
    const double start = now();
    const Plan plan(std::move(copy));
    const double planned = now();
    const std::vector<SlotPlan> slots = plan.rank_slots(a.rank);
    const double end = now();
    out.peak = std::max(out.peak, peak_memory());
    out.wrong += count_wrong(slots);
    out.matrices = std::ssize(plan.matrices());
    out.slots = std::ssize(plan.slots());
    out.balance = plan.lower_bound() > 0 ? plan.makespan() / plan.lower_bound() : 1;
    out.pieces = 0;
    for (const SlotPlan& s : slots) {
      out.pieces += std::ssize(s.gather_pieces) + std::ssize(s.gather_matrix_pieces) +
                    std::ssize(s.return_pieces) + std::ssize(s.return_matrix_pieces);
    }
    if (i < a.warmup) continue;
    out.plan_seconds.push_back(planned - start);
    out.rank_seconds.push_back(end - planned);
  }
  std::sort(out.plan_seconds.begin(), out.plan_seconds.end());
  std::sort(out.rank_seconds.begin(), out.rank_seconds.end());
  return out;
}

int run(const Arguments& a) {
  Table table({{"model", "model", Table::Align::kLeft},
               {"matrices", "matrices"},
               {"slots", "slots"},
               {"balance", "balance"},
               {"min_s", "plan min s"},
               {"median_s", "median s"},
               {"max_s", "max s"},
               {"rank_s", "one rank s"},
               {"pieces", "pieces"},
               {"peak_bytes", "peak memory"},
               {"wrong", "#wrong"}});
  int64_t wrong = 0;
  Progress progress;
  for (const std::string& model : a.models) {
    const Measured m = measure(a, model, progress);
    const size_t middle = m.plan_seconds.size() / 2;
    table.add({cell::word(model), cell::count(m.matrices), cell::count(m.slots),
               cell::number(m.balance, 4), cell::number(m.plan_seconds.front(), 3),
               cell::number(m.plan_seconds[middle], 3), cell::number(m.plan_seconds.back(), 3),
               cell::number(m.rank_seconds[middle], 3), cell::count(m.pieces), cell::bytes(m.peak),
               cell::count(m.wrong)});
    wrong += m.wrong;
  }
  progress.clear();
  if (a.json) {
    fmt::print("{}\n", json_object({{"mesh", json_text(a.mesh)},
                                    {"rank", fmt::format("{}", a.rank)},
                                    {"warmup", fmt::format("{}", a.warmup)},
                                    {"iters", fmt::format("{}", a.iters)},
                                    {"rows", table.json()}}));
  } else {
    fmt::print("Plans for mesh {}, copy lists of rank {}; {} warm-up, {} measured\n\n{}", a.mesh,
               a.rank, a.warmup, a.iters, table.text());
  }
  return wrong > 0 ? 1 : 0;
}

}  // namespace

void add_bench_plan(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand("plan", "time and memory of planning; moves no data");
  auto a = std::make_shared<Arguments>();
  command
      ->add_option("--model", a->models,
                   fmt::format("{}, or shapes: 768x768x4", fmt::join(model_names(), ", ")))
      ->capture_default_str();
  command->add_option("--mesh", a->mesh, "as in muonrt plan")->capture_default_str();
  command->add_option("--rank", a->rank, "whose copy lists and counts are made, too")
      ->check(nonnegative())
      ->capture_default_str();
  command->add_option("--chunk-bytes", a->chunk_bytes, "budget of a chunk at an owner")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--window", a->window, "chunks in flight")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_iterations(*command, "plans", "", a->warmup, a->iters);
  command->add_flag("--json", a->json, "print JSON");
  command->footer(
      "#wrong counts matrices of the rank whose pieces do not add up to the whole.\n"
      "Example: muonrt bench plan --model kimi-k2 --mesh dp=16,fsdp=8,ep=8");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
