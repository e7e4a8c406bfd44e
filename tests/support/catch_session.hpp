#pragma once
#include <catch2/catch.hpp>

/// Runs the tests that the arguments of the program select. If they select none, the program fails,
/// as Catch2 version 3 does by itself.
/// @return 0, or the status to exit with.
inline int take_arguments(Catch::Session& session, int argc, char** argv) {
  const int refused = session.applyCommandLine(argc, argv);
#if CATCH_VERSION_MAJOR == 2
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return refused;
}
