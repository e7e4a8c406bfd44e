#pragma once

#include <stdexcept>
#include <string>

/// Checks for ranks that are threads. They replace Catch2's assertions, which work in one thread
/// only. A failed check throws test_support::FailedCheck, and `world::on_ranks` rethrows it in the
/// test's thread.
namespace test_support {

struct FailedCheck : std::runtime_error {
  FailedCheck(const char* file, int line, const std::string& what)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what) {}
};

}  // namespace test_support

#define RANK_FAIL(text) throw ::test_support::FailedCheck(__FILE__, __LINE__, text)
#define RANK_CHECK(...)                                           \
  do {                                                            \
    if (!(__VA_ARGS__)) RANK_FAIL(#__VA_ARGS__ " does not hold"); \
  } while (false)
/// Checks that `statement` throws an exception of class `type`.
#define RANK_CHECK_THROWS_AS(statement, type)                    \
  do {                                                           \
    const bool thrown = [&] {                                    \
      try {                                                      \
        static_cast<void>(statement);                            \
      } catch (const type&) {                                    \
        return true;                                             \
      }                                                          \
      return false;                                              \
    }();                                                         \
    if (!thrown) RANK_FAIL(#statement " does not throw " #type); \
  } while (false)
