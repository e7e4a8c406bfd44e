#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#if MUONRT_TOOL_MPI
#include <mpi.h>

#include "command/mpi_alarm.hpp"
#endif

#include "command/bench/bench_options.hpp"
#include "command/bench/bench_report.hpp"
#include "command/bench/exchange_workload.hpp"
#include "command/bench/product_load.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/run_device.hpp"
#include "command/validators.hpp"

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

constexpr double kLoadLonger = 3;  // products last longer than an exchange by this factor

struct Arguments {
  int ranks = 0, warmup = 2, iters = 10, factor = 4;
  int64_t min_bytes = 1024, max_bytes = int64_t{64} << 20;
  bool json = false;
  RunDevice where;
  // On a GPU:
  std::string reference = "copy";
  std::vector<std::string> products;  // at most one shape
  int reserved_sms = 8;
};

/// The time of the slowest rank in each iteration, in milliseconds, and the number of wrong bytes
/// on all ranks. Products are timed during the exchange, and again during the reference.
struct Measured {
  std::vector<double> ours, reference, enqueue, products, products_of_reference;
  double products_alone = 0;
  int64_t wrong = 0;
};

bool reference_is_mpi(const Arguments& a) { return under_mpi() && !a.where.cuda(); }
bool reference_is_peers(const Arguments& a) { return a.where.cuda() && a.reference == "peers"; }

/// @param load  products that run during the exchanges; null: none.
Measured measure(Comm& comm, Comm& between, const Arguments& a, const ExchangeSizes& sizes,
                 ProductLoad* load) {
  const auto workload =
      ExchangeWorkload::of(between.get(), a.where.cuda() ? gpu_of(comm.rank()) : -1, sizes);
  const auto mpi = a.where.cuda() ? nullptr : mpi_exchange(comm.rank(), sizes, a.where.timeout);
  const bool peers = reference_is_peers(a);
  const auto slowest = [&](double of_rank) {
    std::vector<double> all(sizes.size());
    comm.allgather(all.data(), &of_rank, sizeof of_rank);
    return *std::max_element(all.begin(), all.end());
  };
  Measured out;
  int64_t wrong = 0;
  const auto checked = [&](bool checks, const auto& exchange) {
    if (checks) workload->forget();
    comm.barrier();
    if (load) load->start();
    const auto time = exchange();
    const double products = load ? load->finish() : 0;
    comm.barrier();
    if (checks) wrong += workload->wrong();
    return std::pair(time, slowest(products));
  };
  if (load) load->set_duration(kLoadLonger * slowest(workload->run().ms));
  out.products_alone = load ? slowest(load->alone_ms()) : 0;
  for (int i = -std::max(1, a.warmup); i < a.iters; ++i) {
    const bool checks = i == -std::max(1, a.warmup) || i + 1 == a.iters;
    const auto [ours, products] = checked(checks, [&] { return workload->run(); });
    // NaN if MPI cannot count the bytes.
    const auto [other, products_of_other] =
        peers ? checked(checks, [&] { return workload->copy_to_peers(); })
              : std::pair(mpi                   ? mpi()
                          : reference_is_mpi(a) ? NAN
                                                : workload->copy(),
                          0.0);
    const double slowest_ours = slowest(ours.ms), slowest_other = slowest(other),
                 slowest_enqueue = slowest(ours.enqueue_ms);
    if (i < 0) continue;
    out.ours.push_back(slowest_ours);
    out.reference.push_back(slowest_other);
    out.enqueue.push_back(slowest_enqueue);
    out.products.push_back(products);
    out.products_of_reference.push_back(products_of_other);
  }
  std::vector<int64_t> all(sizes.size());
  comm.allgather(all.data(), &wrong, sizeof wrong);
  out.wrong = std::accumulate(all.begin(), all.end(), int64_t{0});
  return out;
}

std::vector<Table::Column> columns(const Arguments& a) {
  std::vector<Table::Column> out =
      joined<Table::Column>({{{"bytes", "bytes", Table::Align::kRight, 13}},
                             range_columns(),
                             {{"enqueue_ms", "enqueue", Table::Align::kRight, 7},
                              {"gbps", "GB/s", Table::Align::kRight, 8},
                              {"bus_gbps", "bus GB/s", Table::Align::kRight, 8},
                              {"reference_ms", "reference", Table::Align::kRight, 9},
                              {"of_reference", "ratio", Table::Align::kRight, 6}}});
  if (a.products.empty()) return out;
  return joined<Table::Column>({out,
                                {{"products_alone_ms", "products", Table::Align::kRight, 8},
                                 {"products_ms", "during", Table::Align::kRight, 8},
                                 {"products_of_reference_ms", "ref.", Table::Align::kRight, 8}}});
}

/// @param loaded  whether products ran during the exchanges.
void add_row(BenchReport& report, const Arguments& a, int64_t bytes, const Measured& m,
             size_t ranks, bool loaded) {
  const double middle = median_of(m.ours), reference = median_of(m.reference);
  const double rate = static_cast<double>(bytes) / middle * 1e-6;
  const auto size = static_cast<double>(ranks);
  const auto time = [](bool measured, double ms) {
    return measured ? cell::number(ms, 4) : cell::nothing();
  };
  std::vector<Cell> cells =
      joined<Cell>({{cell::grouped(bytes)},
                    range_cells(m.ours),
                    {cell::number(median_of(m.enqueue), 4), cell::number(rate, 2),
                     cell::number(rate * (size - 1) / size, 2), cell::number(reference, 4),
                     cell::number(reference / middle, 2)}});
  if (!a.products.empty())
    cells =
        joined<Cell>({cells,
                      {time(loaded, m.products_alone), time(loaded, median_of(m.products)),
                       time(loaded && reference_is_peers(a), median_of(m.products_of_reference))}});
  report.add(std::move(cells), m.wrong);
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
  const char* const reference = reference_is_mpi(a)     ? "MPI_Alltoallv"
                                : reference_is_peers(a) ? "copies into the memory of the receivers"
                                                        : "a copy of the bytes on the device";
  BenchReport report({a.json, false, comm.rank() != 0}, columns(a));
  report.title = fmt::format("Exchanges between {} ranks ({}), {} warm-up, {} measured,",
                             comm.size(), gpu_comm, a.warmup, a.iters);
  report.notes = fmt::format(
      "bytes: sent by each rank, including to itself; ms: until all bytes have arrived on the\n"
      "slowest rank; GB/s: bytes by median; bus: without the bytes that ranks send to themselves\n"
      "(busbw of nccl-tests); reference: {}; ratio: its median divided by ours;\n"
      "#wrong: received bytes that differ from the sent ones",
      reference);
  if (!a.products.empty())
    report.notes += fmt::format(
        ";\nproducts: ms of symmetric products of {} that leave {} SMs free, without an exchange;\n"
        "during: when they run during the exchange; ref.: during the reference",
        a.products.front(), a.reserved_sms);
  report.device = a.where.device;
  report.fields = {{"ranks", fmt::format("{}", comm.size())},
                   {"gpu_comm", json_text(gpu_comm)},
                   {"reference", json_text(reference)}};
  std::optional<ProductLoad> load;
  if (!a.products.empty())
    load.emplace(gpu_of(comm.rank()), bench_shapes(a.products).front(), a.reserved_sms);
  for (const int64_t bytes : sizes_of(a)) {
    const ExchangeSizes sizes = exchange_sizes(comm.size(), bytes);
    add_row(report, a, bytes, measure(comm, between, a, sizes, nullptr), sizes.size(), false);
    if (load)
      add_row(report, a, bytes, measure(comm, between, a, sizes, &*load), sizes.size(), true);
  }
  return report.finish();
}

int run(const Arguments& a) {
  if (a.min_bytes > a.max_bytes)
    throw std::runtime_error(
        fmt::format("--min-bytes is {}, but --max-bytes is {}; set --min-bytes to at most this",
                    a.min_bytes, a.max_bytes));
  if (!a.where.cuda() && (a.reference != "copy" || !a.products.empty()))
    throw std::runtime_error("--reference peers and --products need --device cuda");
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
  with_default(*command, "--reference", a->reference,
               "GPU: with what exchanges are compared: copy (of the bytes on the device) or peers "
               "(copies into the memory of the receivers, which need no SM)",
               CLI::IsMember({"copy", "peers"}));
  command
      ->add_option("--products", a->products,
                   "GPU: measure exchanges also while symmetric products of this shape run, such "
                   "as 8192x8192")
      ->expected(1)
      ->check([](const std::string& word) -> std::string {
        try {
          bench_shapes({word});
        } catch (const CLI::ValidationError&) {
          return word + " is not rows x columns [x how many] with the short side first";
        }
        return {};
      });
  with_default(*command, "--reserved-sms", a->reserved_sms, "SMs that the products leave free",
               CLI::Range(0, 1024));
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: mpirun -n 4 muonrt bench exchange --max-bytes 256MiB");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
