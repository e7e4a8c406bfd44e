// Runs seeded worlds: ranks over threads or TCP, in a simulated system. See README.md.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/thread_transport.hpp"
#include "simulation/ranks.hpp"

using namespace simulation;
using muonrt::cat;

namespace {

struct Result {
  std::string problem;
  uint64_t hash = 0;
  int64_t steps = 0, virtual_ns = 0;
};

void run_threads(const Plan& plan, Scheduler&) {
  muonrt::ThreadGroup group(plan.size);
  std::vector<std::unique_ptr<RankRun>> ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.size; ++rank) {
    ranks.push_back(std::make_unique<RankRun>(plan, rank, [](const Fault&) {}));
    threads.emplace_back([&, rank] {
      ranks[static_cast<size_t>(rank)]->run([&] { return group.transport(rank); });
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& rank : ranks) rank->check_buffers();
}

Result run_world(uint64_t seed, bool tcp, bool prints) {
  const Plan plan(seed, tcp);
  if (prints) std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), plan.text().c_str());
  Scheduler scheduler(seed ^ 0x5ced, prints);
  Result out;
  out.problem = scheduler.run(0, [&] { run_threads(plan, scheduler); });
  out.hash = scheduler.log_hash();
  out.steps = scheduler.steps();
  out.virtual_ns = scheduler.now();
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first = 0, last = 1000;
  bool prints = false;
  if (argc > 2) first = strtoull(argv[1], nullptr, 0), last = strtoull(argv[2], nullptr, 0);
  prints = argc > 3;
  int64_t steps = 0, bad = 0;
  for (uint64_t seed = first; seed < last; ++seed) {
    const Result r = run_world(seed, false, prints);
    steps += r.steps;
    if (!r.problem.empty()) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), r.problem.c_str());
      if (++bad > 5) break;
    }
    if (prints) std::printf("hash %llx\n", static_cast<unsigned long long>(r.hash));
  }
  std::printf("%lld worlds, %lld steps\n", static_cast<long long>(last - first), static_cast<long long>(steps));
}
