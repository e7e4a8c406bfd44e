#define CATCH_CONFIG_RUNNER
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "support/catch_session.hpp"

// Runs the tests. One seed determines all random numbers, both rapidcheck's and those that use
// Catch::rngSeed(). Each run prints a new seed; set MUONRT_TEST_SEED to this seed to repeat a run.
// For rapidcheck, RC_PARAMS takes precedence.
int main(int argc, char** argv) {
  Catch::Session session;
  const int refused = take_arguments(session, argc, argv);
  if (refused != 0) return refused;

  auto& config = session.configData();
  const char* given = std::getenv("MUONRT_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                                         : std::random_device{}() % 1000000U;
  config.rngSeed = seed;
  setenv("RC_PARAMS", ("seed=" + std::to_string(seed)).c_str(), 0);
  if (!config.listTests && !config.listTags) {
    std::cout << "MUONRT_TEST_SEED=" << seed << '\n';
  }
  return session.run();
}
