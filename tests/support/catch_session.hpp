#pragma once
#include <catch2/catch.hpp>

/// Takes a program's arguments. No test at all is a failure (in version 3 of Catch2 by itself).
/// @return 0, or the status to exit with.
inline int take_arguments(Catch::Session& session, int argc, char** argv) {
  const int refused = session.applyCommandLine(argc, argv);
#if CATCH_VERSION_MAJOR == 2
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
#endif
  return refused;
}
