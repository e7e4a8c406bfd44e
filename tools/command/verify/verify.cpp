#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/progress.hpp"
#include "command/validators.hpp"
#include "command/verify/catalogue.hpp"
#include "command/verify/expected.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

constexpr double kRate = 0.02;

struct Arguments {
  int ranks = 0, steps = 3, plant = -1;
  RunDevice where;
  bool list = false, json = false;
};

/// The result of one case on one rank. `total` combines the results of all ranks.
struct Found {
  int64_t elements = 0, wrong = 0, bits = 0;
  int64_t gathered = 0;         // different bits if every rank gathers every matrix
  double error = 0, ratio = 0;  // largest error: absolute, and divided by its tolerance
  double seconds = 0;
};

/// For one choice of dtypes, the results of the same steps on one rank and in the reference.
struct Truth {
  std::vector<WholeTensor> alone;
  std::vector<Expected> expected;
};

Truth make_truth(const std::vector<ModelTensor>& tensors, const Numerics& numerics, int steps,
                 const RunDevice& where) {
  Truth out;
  Comm self = Comm::self();
  RunSettings settings;
  settings.numerics = numerics;
  settings.where = where;
  on_device(self, where, [&](Comm& comm) {
    Sharded alone(comm, tensors, {}, settings);
    for (int step = 0; step < steps; ++step) alone.step(step, kRate);
    for (size_t t = 0; t < tensors.size(); ++t) out.alone.push_back(alone.whole(t));
    return 0;
  });
  const auto half = [](int32_t dtype) { return dtype == MUONRT_DTYPE_BF16; };
  out.expected = reference_steps(tensors,
                                 {half(numerics.data), half(numerics.grad),
                                  half(numerics.transport), half(numerics.iteration)},
                                 steps, kRate);
  return out;
}

void compare(Sharded& sharded, size_t tensor, const Expected& expected, Found& found) {
  const std::vector<float> momentum = sharded.state(tensor, MUONRT_STATE_MOMENTUM);
  const std::vector<float> variance = sharded.state(tensor, MUONRT_STATE_VARIANCE);
  sharded.visit(tensor, [&](int64_t element, int64_t local) {
    const auto at = static_cast<size_t>(element);
    double worst = 0;  // largest error divided by its tolerance; NaN counts as wrong
    const auto look = [&](double value, double wanted, double tolerance) {
      const double ratio = std::fabs(value - wanted) / tolerance;
      if (!(ratio <= worst) && tolerance > 0) worst = ratio;
      if (tolerance == 0 && value != wanted) worst = INFINITY;
    };
    const double value = sharded.data_at(tensor, local);
    look(value, expected.data[at], expected.tolerance);
    const auto here = static_cast<size_t>(local);
    if (!momentum.empty()) look(momentum[here], expected.momentum[at], expected.momentum_tolerance);
    if (!variance.empty()) look(variance[here], expected.variance[at], expected.variance_tolerance);
    ++found.elements;
    found.wrong += !(worst <= 1);
    if (!(worst <= found.ratio)) found.ratio = worst;
    const double error = std::fabs(value - expected.data[at]);
    if (!(error <= found.error)) found.error = error;
  });
}

Found run_case(Comm& comm, const VerifyCase& c, const std::vector<ModelTensor>& tensors,
               const Truth& truth, int steps, bool plant) {
  std::vector<TensorLayout> layouts;
  for (size_t t = 0; t < tensors.size(); ++t) layouts.emplace_back(c.layout, tensors[t], t);
  Sharded sharded(comm, tensors, layouts, c.run);
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) sharded.step(step, kRate);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (plant) sharded.plant();
  Found found;
  found.seconds = took.count() / steps;
  for (size_t t = 0; t < tensors.size(); ++t) {
    compare(sharded, t, truth.expected[t], found);
    found.bits += sharded.wrong_bits(t, truth.alone[t]);
  }
  RunSettings settings = c.run;
  settings.replica_mode = MUONRT_REPLICA_MODE_EVERY_RANK;
  Sharded gathered(comm, tensors, layouts, settings);
  for (int step = 0; step < steps; ++step) gathered.step(step, kRate);
  for (size_t t = 0; t < tensors.size(); ++t)
    found.gathered += gathered.wrong_bits(t, truth.alone[t]);
  return found;
}

Found total(Comm& comm, const Found& mine) {
  std::vector<Found> all(static_cast<size_t>(comm.size()));
  comm.allgather(all.data(), &mine, sizeof mine);
  Found out;
  for (const Found& f : all) {
    out.elements += f.elements;
    out.wrong += f.wrong;
    out.bits += f.bits;
    out.gathered += f.gathered;
    out.seconds = std::max(out.seconds, f.seconds);
    if (!(f.error <= out.error)) out.error = f.error;
    if (!(f.ratio <= out.ratio)) out.ratio = f.ratio;
  }
  return out;
}

Table make_table(const std::vector<VerifyCase>& cases) {
  constexpr auto kLeft = Table::Align::kLeft;
  size_t name = 0, mesh = 0;
  for (const VerifyCase& c : cases) {
    name = std::max(name, c.layout.name.size());
    mesh = std::max(mesh, c.layout.mesh.size());
  }
  return Table({{"layout", "layout", kLeft, name},
                {"mesh", "mesh", kLeft, mesh},
                {"dtypes", "dtypes", kLeft, 18},
                {"commit", "commit", kLeft, 6},
                {"window", "window"},
                {"chunk_bytes", "chunk", Table::Align::kRight, 8},
                {"elements", "elements", Table::Align::kRight, 9},
                {"max_error", "max error", Table::Align::kRight, 9},
                {"of_tolerance", "of tol.", Table::Align::kRight, 7},
                {"wrong", "#wrong"},
                {"wrong_bits", "#bits"},
                {"gathered_wrong_bits", "#gather"},
                {"step_ms", "step ms", Table::Align::kRight, 7}});
}

void add_row(Table& table, const VerifyCase& c, const Found& f) {
  table.add({cell::word(c.layout.name), cell::word(c.layout.mesh), cell::word(c.run.numerics.name),
             cell::word(c.run.commit == MUONRT_COMMIT_EAGER ? "eager" : "atomic"),
             cell::count(c.run.window), cell::bytes(c.run.chunk_bytes), cell::count(f.elements),
             cell::scientific(f.error), cell::number(f.ratio, 3), cell::count(f.wrong),
             cell::count(f.bits), cell::count(f.gathered), cell::number(f.seconds * 1e3, 1)});
}

constexpr const char* kColumns =
    "#wrong: elements of parameters and state that differ from the float64 reference by more than "
    "a\n"
    "tolerance (tol.) that follows from the dtypes; #bits: elements whose bytes differ from those "
    "of "
    "a\n"
    "single rank; #gather: the same if every rank gathers and orthogonalizes every matrix.\n"
    "Messages, scratch and the space around every shard are NaN before each step.\n";

/// Runs all cases on one rank.
int verify(Comm& comm, const Arguments& a, const std::vector<ModelTensor>& tensors,
           const std::vector<VerifyCase>& cases, const std::vector<Truth>& truths) {
  const bool root = comm.rank() == 0, talk = root && !a.json;
  Table table = make_table(cases);
  const bool rows = talk && table.fits();
  if (talk) {
    print_fitted(fmt::format("{} ranks, {} layouts, {} parameters, {} steps each\n{}\n",
                             comm.size(), cases.size(), tensors.size(), a.steps, kColumns));
    if (rows) fmt::print("{}", table.head());
    std::fflush(stdout);
  }
  Progress progress(root && !rows);
  int64_t wrong = 0, bits = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const VerifyCase& c = cases[i];
    progress.show(fmt::format("verify {} of {}: {}", i + 1, cases.size(), c.layout.name));
    size_t dtypes = 0;
    while (std::string(all_numerics()[dtypes].name) != c.run.numerics.name) ++dtypes;
    Found mine;
    try {
      VerifyCase here = c;
      here.run.where = a.where;
      mine =
          run_case(comm, here, tensors, truths[dtypes], a.steps, i == 0 && a.plant == comm.rank());
    } catch (const std::exception& e) {
      throw std::runtime_error(
          fmt::format("layout '{}' over {}: {}", c.layout.name, c.layout.mesh, e.what()));
    }
    const Found f = total(comm, mine);
    wrong += f.wrong;
    bits += f.bits + f.gathered;
    add_row(table, c, f);
    if (rows) fmt::print("{}", table.row(i));
    std::fflush(stdout);
  }
  progress.clear();
  if (root && a.json) {
    fmt::print("{}\n", json_object({{"ranks", fmt::format("{}", comm.size())},
                                    {"steps", fmt::format("{}", a.steps)},
                                    {"wrong", fmt::format("{}", wrong)},
                                    {"wrong_bits", fmt::format("{}", bits)},
                                    {"rows", table.json()}}));
  } else if (talk) {
    if (!rows) fmt::print("{}", table.text());
    print_fitted(fmt::format("\n{} wrong, {} with different bits in {} layouts.\n", wrong, bits,
                             cases.size()));
  }
  return wrong + bits > 0 ? 1 : 0;
}

int list_cases(const Arguments& a) {
  if (launcher_rank() != 0) return 0;
  constexpr auto kLeft = Table::Align::kLeft;
  Table table({{"layout", "layout", kLeft}, {"mesh", "mesh", kLeft}, {"words", "words", kLeft}});
  for (const ListedLayout& listed : verify_layouts(a.ranks == 0 ? 4 : a.ranks)) {
    table.add({cell::word(listed.words.name), cell::word(listed.words.mesh),
               cell::word(listed.arguments)});
  }
  fmt::print("{}", a.json ? json_object({{"rows", table.json()}}) + "\n" : table.text());
  return 0;
}

int run(const Arguments& a) {
  if (a.list) return list_cases(a);
  if (const int skipped = skip_without_gpu(a.where.device, a.json)) return skipped;
  const std::vector<ModelTensor> tensors = verify_tensors();
  std::vector<Truth> truths;
  {
    Progress progress(launcher_rank() == 0);
    for (const Numerics& n : all_numerics()) {
      progress.show(fmt::format("verify: a single rank and the reference, {}", n.name));
      truths.push_back(make_truth(tensors, n, a.steps, a.where));
    }
  }
  const int ranks = a.ranks == 0 && !under_launcher() ? 4 : a.ranks;
  return launch(ranks, a.where.timeout, [&](Comm& comm) {
    const auto cases = verify_cases(comm.size());
    return on_device(comm, a.where,
                     [&](Comm& between) { return verify(between, a, tensors, cases, truths); });
  });
}

}  // namespace

void add_verify(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand(
      "verify", "compares steps over many layouts with a float64 reference and with one rank");
  auto a = std::make_shared<Arguments>();
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 4)")
      ->check(CLI::Range(1, 64));
  with_default(*command, "--steps", a->steps, "steps of every layout", CLI::Range(1, 100));
  add_run_device_options(*command, a->where);
  command->add_flag("--list", a->list, "only print the layouts for this number of ranks");
  command->add_flag("--json", a->json, "print JSON");
  // This option is for tests. It flips a bit on one rank, and the command must detect this.
  command->add_option("--plant", a->plant)->group("");
  command->footer("Exit code 1 if anything is wrong.\nExample: mpirun -n 4 muonrt verify");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
