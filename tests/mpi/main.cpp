// Runs Catch2 under mpirun. Rank 0 prints its output immediately, and the output of the other ranks
// is printed only if a test fails. All ranks return the same exit code, because mpirun ends the job
// if one rank fails.
#define CATCH_CONFIG_RUNNER
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "mpi/harness.hpp"
#include "mpi/session.hpp"
#include "support/catch_session.hpp"

namespace {
bool quiet = false;
/// Stops the job if the ranks are not in the same test case. Prints a failure immediately, because
/// if the job hangs later, the stored output is not printed.
class Agreement : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    TestEventListenerBase::testCaseStarting(info);
    name_ = info.name;
    agree("start");
  }
  // In version 3 of Catch2, the function has a different return type.
  using Result = decltype(std::declval<TestEventListenerBase>().assertionEnded(
      std::declval<const Catch::AssertionStats&>()));
  Result assertionEnded(const Catch::AssertionStats& stats) override {
    if (quiet && !stats.assertionResult.isOk()) {
      const auto& where = stats.assertionResult.getSourceInfo();
      std::cerr << "rank " << mpi_test::rank() << " failed at " << where.file << ':' << where.line
                << ": " << stats.assertionResult.getExpression() << std::endl;
    }
    return TestEventListenerBase::assertionEnded(stats);
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    agree("end");
    TestEventListenerBase::testCaseEnded(stats);
  }

 private:
  void agree(const char* point) {
    if (mpi_test::same_on_all(std::hash<std::string>{}(point + name_))) return;
    std::cerr << "rank " << mpi_test::rank() << " is at the " << point << " of '" << name_
              << "', another rank elsewhere; do all ranks have the same arguments?" << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 99);
  }

  std::string name_;
};
CATCH_REGISTER_LISTENER(Agreement)

int level_from(const std::string& name) {
  if (name == "single") return MPI_THREAD_SINGLE;
  if (name == "funneled") return MPI_THREAD_FUNNELED;
  if (name == "serialized") return MPI_THREAD_SERIALIZED;
  return name == "multiple" ? MPI_THREAD_MULTIPLE : -1;
}

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  std::string level = "multiple";
  session.cli(session.cli() |
              Catch::clara::Opt(level, "single|funneled|serialized|multiple")["--mpi-thread"](
                  "the thread level that is passed to MPI_Init_thread"));
  const int exit_code = take_arguments(session, argc, argv);
  if (exit_code != 0) return exit_code;
  if (level_from(level) < 0) {
    std::cerr << "--mpi-thread " << level << " is unknown; see --help\n";
    return 1;
  }

  mpi_test::open(&argc, &argv, level_from(level));
  quiet = mpi_test::rank() != 0;
  std::ostringstream kept;
  std::streambuf* const loud = std::cout.rdbuf();
  if (quiet) std::cout.rdbuf(kept.rdbuf());
  const char* const given = std::getenv("MUONRT_TEST_SEED");
  const unsigned seed = mpi_test::of_rank_0(
      given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}());
  session.configData().rngSeed = seed;
  std::cout << mpi_test::size() << " ranks, thread level " << mpi_test::thread_level()
            << ", MUONRT_TEST_SEED=" << seed << std::endl;

  int code = mpi_test::largest_of_all(std::min(session.run(), 255));
  std::cout.rdbuf(loud);
  if (code != 0) {
    const std::string mine = kept.str();
    std::cerr << mpi_test::gather_texts(
        quiet ? "---- rank " + std::to_string(mpi_test::rank()) + " ----\n" + mine : "", false);
  }
  // The mpirun of a different MPI implementation would start several single-rank jobs.
  const char* const ranks = std::getenv("MUONRT_TEST_RANKS");
  if (ranks && std::atoi(ranks) != mpi_test::size()) {
    std::cerr << "MUONRT_TEST_RANKS is " << ranks << ", but MPI has " << mpi_test::size()
              << " ranks" << std::endl;
    code = 1;
  }
  const std::string after_finalize = mpi_test::close();
  if (after_finalize.find("MUONRT_ERROR_INVALID_STATE") == std::string::npos) {
    std::cerr << "creating a transport after MPI_Finalize returned: " << after_finalize
              << std::endl;
    code = 1;
  }
  return code;
}
