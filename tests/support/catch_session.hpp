#pragma once
#include <catch2/catch.hpp>

/// Parses the program's arguments. With Catch2 version 2, also makes the program fail if the
/// arguments select no test, which is the default of version 3.
/// @return 0, or the exit status for the program.
inline int take_arguments(Catch::Session& session, int argc, char** argv) {
  const int refused = session.applyCommandLine(argc, argv);
#if CATCH_VERSION_MAJOR == 2
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return refused;
}
