#pragma once
#include <catch2/catch.hpp>

/// Parses the program's arguments. If they select no test, the program fails. Catch2 version 3 does
/// this by default; with version 2, this function sets it.
/// @return 0, or the exit status for the program.
inline int take_arguments(Catch::Session& session, int argc, char** argv) {
  const int refused = session.applyCommandLine(argc, argv);
#if CATCH_VERSION_MAJOR == 2
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return refused;
}
