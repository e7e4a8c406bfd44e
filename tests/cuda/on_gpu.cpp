#define CATCH_CONFIG_RUNNER
#include <iostream>

#include "backend/cuda_device.hpp"
#include "cuda/machine.hpp"
#include "support/catch_session.hpp"

namespace {

int cases = 0, without_assertions = 0;

struct CountsCases : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  /// Prints the name first, so that it is visible even if the case hangs or ends the process.
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ++cases;
    std::cerr << "case: " << info.name << std::endl;
  }
  /// A case without assertions was skipped, or all its loops had no iterations.
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    without_assertions += stats.totals.assertions.total() == 0;
  }
};
CATCH_REGISTER_LISTENER(CountsCases)

}  // namespace

namespace cuda_test {

bool is_emulated() { return false; }
int64_t slow_calls() { return 0; }
void leave_out(const char* why) { WARN("left out: " << why); }

}  // namespace cuda_test

// CTest reports a test with this exit status as skipped.
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  Catch::Session session;
  const int refused = take_arguments(session, argc, argv);
  if (refused != 0) return refused;
  const auto& asked = session.configData();
  if (asked.listTests || asked.listTags) {  // listing needs no GPU
    session.run();                          // returns the number of cases
    return 0;
  }
  if (muonrt::cuda_device_count() == 0) {
    std::cout << "skipped: no CUDA device (CUDA is "
              << (muonrt::cuda_is_built() ? "built" : "not built") << ")\n";
    return kSkipped;
  }
  const int status = session.run();
  if (status != 0 || cases == 0 || without_assertions < cases) return status;
  std::cout << "skipped: no case asserted anything\n";
  return kSkipped;
}
