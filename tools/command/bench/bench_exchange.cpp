#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "command/bench/bench_options.hpp"
#include "command/bench/exchange_scene.hpp"
#include "command/bench/median.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/mpi_reference.hpp"
#include "command/run_device.hpp"
#include "command/table.hpp"

namespace muonrt::tool {

namespace {

struct Arguments {
  int ranks = 0, warmup = 2, iters = 10, factor = 4;
  int64_t min_bytes = 1024, max_bytes = int64_t{64} << 20;
  bool uneven = false, json = false;
  RunDevice where;
};

/// Milliseconds of the slowest rank, by iteration; and wrong bytes of all ranks.
struct Measured {
  std::vector<double> ours, reference;
  int64_t wrong = 0, messages = 0;
};

bool reference_is_mpi(const Arguments& a) { return under_launcher() && !a.where.cuda(); }

Measured measure(Comm& comm, Comm& between, const Arguments& a, const ExchangeSizes& sizes) {
  ExchangeScene scene(between.get(), a.where.cuda() ? gpu_of(comm.rank()) : -1, sizes);
  const auto mpi = a.where.cuda() ? nullptr : MpiReference::of(comm.rank(), sizes, a.where.timeout);
  Measured out;
  int64_t wrong = 0;
  for (int i = -std::max(1, a.warmup); i < a.iters; ++i) {
    const bool first = i == -std::max(1, a.warmup), last = i + 1 == a.iters;
    if (first || last) scene.forget();
    comm.barrier();
    const double ours = scene.run();
    if (first || last) wrong += scene.wrong();
    comm.barrier();
    // No number stands for MPI where MPI cannot count that far.
    const double other = mpi ? mpi->run() : reference_is_mpi(a) ? NAN : scene.copy();
    const std::array<double, 2> mine = {ours, other};
    std::vector<std::array<double, 2>> all(sizes.size());
    comm.allgather(&mine, all.data(), sizeof mine);
    if (i < 0) continue;
    const auto slowest = [&](size_t k) {
      double most = all[0][k];
      for (const auto& times : all) most = std::max(most, times[k]);
      return most;
    };
    out.ours.push_back(slowest(0));
    out.reference.push_back(slowest(1));
  }
  std::vector<int64_t> all(sizes.size());
  comm.allgather(&wrong, all.data(), sizeof wrong);
  for (const int64_t w : all) out.wrong += w;
  for (const auto& row : sizes)
    out.messages += static_cast<int64_t>(row.size()) - std::count(row.begin(), row.end(), 0);
  return out;
}

Table make_table() {
  return Table({{"bytes", "bytes", Table::Align::kRight, 13},
                {"messages", "messages"},
                {"min_ms", "min ms", Table::Align::kRight, 9},
                {"median_ms", "median ms", Table::Align::kRight, 9},
                {"max_ms", "max ms", Table::Align::kRight, 9},
                {"gbps", "GB/s", Table::Align::kRight, 8},
                {"bus_gbps", "bus GB/s", Table::Align::kRight, 8},
                {"reference_ms", "reference", Table::Align::kRight, 9},
                {"of_reference", "ratio", Table::Align::kRight, 6},
                {"wrong", "#wrong"}});
}

void add_row(Table& table, int64_t bytes, const Measured& m, size_t ranks) {
  const double middle = median_of(m.ours), reference = median_of(m.reference);
  const double rate = static_cast<double>(bytes) / middle * 1e-6;
  const auto size = static_cast<double>(ranks);
  table.add(
      {cell::grouped(bytes), cell::count(m.messages),
       cell::number(*std::min_element(m.ours.begin(), m.ours.end()), 4), cell::number(middle, 4),
       cell::number(*std::max_element(m.ours.begin(), m.ours.end()), 4), cell::number(rate, 2),
       cell::number(rate * (size - 1) / size, 2), cell::number(reference, 4),
       cell::number(reference / middle, 2), cell::count(m.wrong)});
}

/// The sizes, and the longest last.
std::vector<int64_t> sizes_of(const Arguments& a) {
  std::vector<int64_t> out;
  for (int64_t bytes = a.min_bytes; bytes < a.max_bytes; bytes *= a.factor) out.push_back(bytes);
  out.push_back(a.max_bytes);
  return out;
}

constexpr const char* kColumns =
    "bytes: that a rank sends, to itself included; messages: of all ranks. min, median, max ms: "
    "until\n"
    "all has arrived on the slowest rank, over iterations. GB/s: bytes by median; bus: without "
    "what\n"
    "ranks send to themselves (nccl-tests' busbw). ratio: the reference's median by ours. #wrong: "
    "bytes\n"
    "that did not arrive as they were sent.\n";

int bench(Comm& comm, Comm& between, const Arguments& a) {
  const bool talk = comm.rank() == 0 && !a.json;
  const char* const reference =
      reference_is_mpi(a) ? "MPI_Alltoallv" : "a copy of the bytes on the device";
  const std::string link = a.where.cuda() ? a.where.link : "host";
  const std::string shares = a.uneven ? "uneven" : "equal";
  Table table = make_table();
  if (talk) {
    fmt::print("{} ranks on {} ({}), {} shares, {} warm-up, {} measured; reference: {}\n{}\n{}",
               comm.size(), a.where.device, link, shares, a.warmup, a.iters, reference, kColumns,
               table.head());
    std::fflush(stdout);
  }
  int64_t wrong = 0;
  for (const int64_t bytes : sizes_of(a)) {
    const ExchangeSizes sizes = exchange_sizes(comm.size(), bytes, a.uneven);
    const Measured m = measure(comm, between, a, sizes);
    wrong += m.wrong;
    add_row(table, bytes, m, sizes.size());
    if (talk) fmt::print("{}", table.row(table.rows() - 1));
    std::fflush(stdout);
  }
  if (comm.rank() == 0 && a.json) {
    fmt::print("{}\n", json_object({{"ranks", fmt::format("{}", comm.size())},
                                    {"device", json_text(a.where.device)},
                                    {"link", json_text(link)},
                                    {"shares", json_text(shares)},
                                    {"reference", json_text(reference)},
                                    {"wrong", fmt::format("{}", wrong)},
                                    {"rows", table.json()}}));
  }
  return wrong > 0 ? 1 : 0;
}

int run(const Arguments& a) {
  if (a.min_bytes > a.max_bytes)
    throw std::runtime_error(fmt::format("--min-bytes is {}, but --max-bytes {}; use no more",
                                         a.min_bytes, a.max_bytes));
  if (const int skipped = skip_without_gpu(a.where.device, a.json)) return skipped;
  const int ranks = a.ranks == 0 && !under_launcher() ? 2 : a.ranks;
  return launch(ranks, a.where.timeout, [&](Comm& comm) {
    return on_device(comm, a.where, [&](Comm& between) { return bench(comm, between, a); });
  });
}

}  // namespace

void add_bench_exchange(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand(
      "exchange", "all-to-all-v between ranks, as a step's messages travel, beside MPI's own");
  auto a = std::make_shared<Arguments>();
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 2)")
      ->check(CLI::Range(1, 1024));
  const auto bytes = [&](const char* name, int64_t& value, const char* what) {
    command->add_option(name, value, what)
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 36))
        ->capture_default_str();
  };
  bytes("--min-bytes", a->min_bytes, "that a rank sends in all, as 4096, 64KiB, 1MiB");
  bytes("--max-bytes", a->max_bytes, "the same of the last row");
  command->add_option("--factor", a->factor, "from row to row")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  command->add_flag("--uneven", a->uneven, "shares drawn at random, some of them empty");
  add_iterations(*command, "exchanges", "; the first is checked", a->warmup, a->iters);
  add_link_options(*command, a->where);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: mpirun -n 4 muonrt bench exchange --max-bytes 256MiB");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
