#pragma once
#include <catch2/catch.hpp>

/// Runs the tests that the program's arguments select. If the arguments select no test, the program
/// fails, as it would with Catch2 version 3.
/// @return 0, or the exit status for the program.
inline int take_arguments(Catch::Session& session, int argc, char** argv) {
  const int refused = session.applyCommandLine(argc, argv);
#if CATCH_VERSION_MAJOR == 2
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return refused;
}
