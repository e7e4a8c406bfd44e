#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "command/bench/bench_report.hpp"
#include "command/bench/calibrate.hpp"
#include "command/bench/exchange_workload.hpp"
#include "command/command.hpp"
#include "command/gpu.hpp"
#include "command/launch.hpp"
#include "command/run_device.hpp"
#include "command/validators.hpp"
#include "opt_json/output_file.hpp"

namespace muonrt::tool {

namespace {

struct Arguments : DeviceArguments {
  std::string out, gpu_comm = "staged";
};

double exchange_ms(const Arguments& a, int ranks, int64_t bytes, int64_t& wrong) {
  ExchangeSizes sizes(static_cast<size_t>(ranks),
                      std::vector<int64_t>(static_cast<size_t>(ranks), bytes));
  for (size_t r = 0; r < sizes.size(); ++r) sizes[r][r] = 0;
  RunDevice where;
  where.device = a.device;
  where.gpu_comm = a.gpu_comm;
  std::vector<double> ms;
  int64_t bad = 0;
  const int failed = launch(ranks, where.timeout, [&](Comm& comm) {
    return on_device(comm, where, [&](Comm& between) {
      const auto workload =
          ExchangeWorkload::of(between.get(), where.cuda() ? gpu_of(comm.rank()) : -1, sizes);
      for (int i = -2; i < 3 * a.iters; ++i) {
        if (i == -2) workload->forget();
        comm.barrier();
        const double took = workload->run().ms;
        const int64_t found = i == -2 ? workload->wrong() : 0;
        std::vector<double> all(sizes.size());
        comm.allgather(all.data(), &took, sizeof took);
        std::vector<int64_t> counts(sizes.size());
        comm.allgather(counts.data(), &found, sizeof found);
        if (comm.rank() != 0) continue;
        for (const int64_t count : counts) bad += count;
        if (i >= 0) ms.push_back(*std::max_element(all.begin(), all.end()));
      }
      return 0;
    });
  });
  if (failed) throw std::runtime_error("the exchange between threads has failed");
  wrong += bad;
  return median_of(ms);
}

int run(const Arguments& a) {
  if (under_launcher())
    throw std::runtime_error("bench calibrate measures in one process; run it without a launcher");
  if (const int skipped = skip_without_gpu(a.device, a.json)) return skipped;
  require_writable({{"--out", a.out}}, {});
  return calibrate(a, a.out, [&](int ranks, int64_t bytes, int64_t& wrong) {
    return exchange_ms(a, ranks, bytes, wrong);
  });
}

}  // namespace

void add_bench_calibrate(CLI::App& bench, Work& work) {
  auto* command = bench.add_subcommand(
      "calibrate", "measures this machine and writes a profile for `plan --machine FILE`");
  auto a = std::make_shared<Arguments>();
  a->iters = 15;
  command->add_option("--out", a->out, "file for the profile")->required()->check(file_name());
  add_device_options(*command, *a);
  with_default(*command, "--gpu-comm", a->gpu_comm, "communication between GPUs: staged or nccl",
               CLI::IsMember({"staged", "nccl"}));
  command->footer("Example: muonrt bench calibrate --out machine.json");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
