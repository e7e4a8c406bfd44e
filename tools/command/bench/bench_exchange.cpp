#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#if MUONRT_TOOL_MPI
#include <mpi.h>

#include "command/mpi_alarm.hpp"
#endif

#include "command/bench/bench_options.hpp"
#include "command/bench/bench_report.hpp"
#include "command/bench/exchange_workload.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/run_device.hpp"

namespace muonrt::tool {

namespace {

#if MUONRT_TOOL_MPI
/// The send side or the receive side of an exchange: the number of bytes for each peer, and the
/// offsets.
struct Side {
  std::vector<int> counts, begins = {0};
  std::vector<unsigned char> memory;

  explicit Side(const std::vector<int64_t>& bytes) : counts(bytes.begin(), bytes.end()) {
    for (const int count : counts) begins.push_back(begins.back() + count);
    memory.resize(static_cast<size_t>(begins.back()));
  }
};
#endif

/// Returns a function that runs MPI_Alltoallv over the ranks of mpirun and returns the duration in
/// milliseconds, for comparison with muonrt's exchange. If mpirun did not start this process, or if
/// a rank sends or receives more bytes than MPI can count (2 GiB), returns an empty function.
std::function<double()> mpi_exchange([[maybe_unused]] int rank,
                                     [[maybe_unused]] const ExchangeSizes& sizes,
                                     [[maybe_unused]] double timeout) {
#if MUONRT_TOOL_MPI
  if (!under_mpi()) return nullptr;
  ExchangeSizes received(sizes.size());
  for (const auto& row : sizes)
    for (size_t to = 0; to < row.size(); ++to) received[to].push_back(row[to]);
  // Every rank checks the sizes of all ranks, so all ranks make the same decision.
  for (const ExchangeSizes* side : {&sizes, &std::as_const(received)})
    for (const auto& row : *side)
      if (std::accumulate(row.begin(), row.end(), int64_t{0}) > std::numeric_limits<int>::max())
        return nullptr;
  const auto me = static_cast<size_t>(rank);
  return [out = Side(sizes[me]), in = Side(received[me]), timeout]() mutable {
    const MpiAlarm alarm(timeout);
    const double start = MPI_Wtime();
    const int code = MPI_Alltoallv(out.memory.data(), out.counts.data(), out.begins.data(),
                                   MPI_BYTE, in.memory.data(), in.counts.data(), in.begins.data(),
                                   MPI_BYTE, MPI_COMM_WORLD);
    if (code != MPI_SUCCESS) throw std::runtime_error("MPI_Alltoallv failed");
    return (MPI_Wtime() - start) * 1e3;
  };
#else
  return nullptr;
#endif
}

struct Arguments {
  int ranks = 0, warmup = 2, iters = 10, factor = 4;
  int64_t min_bytes = 1024, max_bytes = int64_t{64} << 20;
  bool json = false;
  RunDevice where;
};

/// The milliseconds of the slowest rank in each iteration, and the sum of the wrong bytes over the
/// ranks.
struct Measured {
  std::vector<double> ours, reference;
  int64_t wrong = 0;
};

bool reference_is_mpi(const Arguments& a) { return under_mpi() && !a.where.cuda(); }

Measured measure(Comm& comm, Comm& between, const Arguments& a, const ExchangeSizes& sizes) {
  const auto workload =
      ExchangeWorkload::of(between.get(), a.where.cuda() ? gpu_of(comm.rank()) : -1, sizes);
  const auto mpi = a.where.cuda() ? nullptr : mpi_exchange(comm.rank(), sizes, a.where.timeout);
  Measured out;
  int64_t wrong = 0;
  for (int i = -std::max(1, a.warmup); i < a.iters; ++i) {
    const bool first = i == -std::max(1, a.warmup), last = i + 1 == a.iters;
    if (first || last) workload->forget();
    comm.barrier();
    const double ours = workload->run();
    if (first || last) wrong += workload->wrong();
    comm.barrier();
    // NaN if MPI is the reference, but cannot count the bytes.
    const double other = mpi ? mpi() : reference_is_mpi(a) ? NAN : workload->copy();
    const auto slowest = [&](double of_rank) {
      std::vector<double> all(sizes.size());
      comm.allgather(all.data(), &of_rank, sizeof of_rank);
      return *std::max_element(all.begin(), all.end());
    };
    const double slowest_ours = slowest(ours), slowest_other = slowest(other);
    if (i < 0) continue;
    out.ours.push_back(slowest_ours);
    out.reference.push_back(slowest_other);
  }
  std::vector<int64_t> all(sizes.size());
  comm.allgather(all.data(), &wrong, sizeof wrong);
  out.wrong = std::accumulate(all.begin(), all.end(), int64_t{0});
  return out;
}

std::vector<Table::Column> columns() {
  return joined<Table::Column>({{{"bytes", "bytes", Table::Align::kRight, 13}},
                                range_columns(),
                                {{"gbps", "GB/s", Table::Align::kRight, 8},
                                 {"bus_gbps", "bus GB/s", Table::Align::kRight, 8},
                                 {"reference_ms", "reference", Table::Align::kRight, 9},
                                 {"of_reference", "ratio", Table::Align::kRight, 6}}});
}

void add_row(BenchReport& report, int64_t bytes, const Measured& m, size_t ranks) {
  const double middle = median_of(m.ours), reference = median_of(m.reference);
  const double rate = static_cast<double>(bytes) / middle * 1e-6;
  const auto size = static_cast<double>(ranks);
  report.add(joined<Cell>({{cell::grouped(bytes)},
                           range_cells(m.ours),
                           {cell::number(rate, 2), cell::number(rate * (size - 1) / size, 2),
                            cell::number(reference, 4), cell::number(reference / middle, 2)}}),
             m.wrong);
}

/// Returns the size for each row of the table in ascending order. The last size is max_bytes.
std::vector<int64_t> sizes_of(const Arguments& a) {
  std::vector<int64_t> out;
  for (int64_t bytes = a.min_bytes; bytes < a.max_bytes; bytes *= a.factor) out.push_back(bytes);
  out.push_back(a.max_bytes);
  return out;
}

int bench(Comm& comm, Comm& between, const Arguments& a) {
  const std::string gpu_comm = a.where.cuda() ? a.where.gpu_comm : "host";
  const char* const reference =
      reference_is_mpi(a) ? "MPI_Alltoallv" : "a copy of the bytes on the device";
  BenchReport report({a.json, false, comm.rank() != 0}, columns());
  report.title = fmt::format("Exchanges between {} ranks ({}), {} warm-up, {} measured,",
                             comm.size(), gpu_comm, a.warmup, a.iters);
  report.notes = fmt::format(
      "bytes: sent by each rank, including to itself; ms: until all bytes have arrived on the\n"
      "slowest rank; GB/s: bytes by median; bus: without the bytes that ranks send to themselves\n"
      "(busbw of nccl-tests); reference: {}; ratio: its median divided by ours;\n"
      "#wrong: received bytes that differ from the sent ones",
      reference);
  report.device = a.where.device;
  report.fields = {{"ranks", fmt::format("{}", comm.size())},
                   {"gpu_comm", json_text(gpu_comm)},
                   {"reference", json_text(reference)}};
  for (const int64_t bytes : sizes_of(a)) {
    const ExchangeSizes sizes = exchange_sizes(comm.size(), bytes);
    add_row(report, bytes, measure(comm, between, a, sizes), sizes.size());
  }
  return report.finish();
}

int run(const Arguments& a) {
  if (a.min_bytes > a.max_bytes)
    throw std::runtime_error(
        fmt::format("--min-bytes is {}, but --max-bytes is {}; set --min-bytes to at most this",
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
      "exchange", "all-to-all-v between ranks, as in a step, compared with MPI's");
  auto a = std::make_shared<Arguments>();
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 2)")
      ->check(CLI::Range(1, 1024));
  const auto bytes = [&](const char* name, int64_t& value, const char* what) {
    command->add_option(name, value, what)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 36))
        ->capture_default_str();
  };
  bytes("--min-bytes", a->min_bytes, "bytes that each rank sends: 4096, 64KiB, 1MiB, ...");
  bytes("--max-bytes", a->max_bytes, "bytes in the last row");
  command->add_option("--factor", a->factor, "factor between rows")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  add_iterations(*command, "exchanges", "; the first is checked", a->warmup, a->iters);
  add_gpu_comm_options(*command, a->where);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: mpirun -n 4 muonrt bench exchange --max-bytes 256MiB");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
