// Runs worlds. In a world, ranks communicate as threads of one process or over TCP, in a simulated
// system. A seed determines each world. See README.md.

#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/text.hpp"
#include "simulation/worlds.hpp"
#include "support/folder.hpp"

using namespace simulation;

namespace {

// An OS process runs 250 worlds. When it exits, the memory of killed simulated processes is freed.
constexpr uint64_t kWorldsOfProcess = 250;
constexpr uint64_t kRepeated = 16;      // one of this many worlds runs twice
constexpr time_t kSecondsOfWorld = 60;  // of processor time

struct Options {
  uint64_t first = 0, last = 1000;
  bool threads = true, tcp = true, replays = false;
  int64_t most_problems = 1;
};

/// Memory that is shared between a process that runs worlds and its parent.
struct Shared {
  uint64_t seed;
  int64_t steps;
  char problem[3000];
};

void report(const char* transport, uint64_t seed, const std::string& problem) {
  std::printf("seed %llu over %s: %s\n  replay: muonrt_simulation --transport %s --replay %llu\n",
              static_cast<unsigned long long>(seed), transport, problem.c_str(), transport,
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
}

/// Runs worlds until a problem occurs in one of them.
void run_worlds(Shared& shared, uint64_t last, bool tcp) {
  for (; shared.seed < last; ++shared.seed) {
    const itimerval limit{{}, {kSecondsOfWorld, 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    const Result first = run_world(shared.seed, tcp, false);
    std::string problem = first.problem;
    if (problem.empty() && shared.seed % kRepeated == 0 &&
        run_world(shared.seed, tcp, false).log_hash != first.log_hash)
      problem = "a second run has other events";
    shared.steps += first.steps;
    std::snprintf(shared.problem, sizeof shared.problem, "%s", problem.c_str());
    if (!problem.empty()) return;
  }
}

/// Runs all worlds and returns the number of problems.
int64_t run_all(const Options& options, bool tcp) {
  const char* const transport = tcp ? "tcp" : "threads";
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  int64_t problems = 0;
  shared->seed = options.first;
  while (shared->seed < options.last && problems < options.most_problems) {
    shared->problem[0] = '\0';
    const uint64_t last = std::min(options.last, shared->seed + kWorldsOfProcess);
    const pid_t child = fork();
    if (child == 0) {
      run_worlds(*shared, last, tcp);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::string problem = shared->problem;
    if (WIFSIGNALED(status))
      problem = muonrt::cat("the process ended with signal ", WTERMSIG(status),
                            WTERMSIG(status) == SIGPROF ? ": the world takes too long" : "");
    if (problem.empty()) continue;
    report(transport, shared->seed, problem);
    ++problems;
    ++shared->seed;
  }
  std::printf("%s: %llu worlds, %lld steps, %lld problems\n", transport,
              static_cast<unsigned long long>(shared->seed - options.first),
              static_cast<long long>(shared->steps), static_cast<long long>(problems));
  munmap(shared, sizeof(Shared));
  return problems;
}

[[noreturn]] void usage() {
  std::fputs(
      "usage: muonrt_simulation [--transport threads|tcp] [--seeds FIRST..LAST] [--problems N]\n"
      "                         [--replay SEED]\n",
      stderr);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) usage();
    const char* const value = argv[i + 1];
    if (name == "--transport") {
      out.threads = std::strcmp(value, "tcp") != 0;
      out.tcp = std::strcmp(value, "threads") != 0;
      if (out.threads && out.tcp) usage();
    } else if (name == "--seeds") {
      unsigned long long first = 0, last = 0;
      if (std::sscanf(value, "%llu..%llu", &first, &last) != 2) usage();
      out.first = first, out.last = last;
    } else if (name == "--problems") {
      out.most_problems = std::atoll(value);
    } else if (name == "--replay") {
      out.replays = true;
      out.first = std::strtoull(value, nullptr, 10);
    } else {
      usage();
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const test_support::Folder folder;  // for worlds whose ranks use a folder for their rendezvous
  if (chdir(folder.path().c_str()) != 0) return 2;
  int64_t problems = 0;
  for (const bool tcp : {false, true}) {
    if (!(tcp ? options.tcp : options.threads)) continue;
    if (!options.replays) {
      problems += run_all(options, tcp);
      continue;
    }
    const Result result = run_world(options.first, tcp, true);
    std::printf("%s\nevents have the hash %016llx\n",
                result.problem.empty() ? "no problem" : result.problem.c_str(),
                static_cast<unsigned long long>(result.log_hash));
    problems += !result.problem.empty();
  }
  return problems == 0 ? 0 : 1;
}
