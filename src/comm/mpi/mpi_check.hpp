#pragma once

#include <mpi.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace muonrt::mpi {

/// Returns the text that MPI provides for an error code.
inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

inline void check(int code, const char* call, const char* function, int line) {
  MUONRT_REQUIRE(code == MPI_SUCCESS, Status::kComm, call, " failed in ", function, ", line ", line,
                 ": ", error_text(code));
}

}  // namespace muonrt::mpi

/// Calls an MPI function and throws COMM if it returns an error. The error handler of the
/// communicator must be MPI_ERRORS_RETURN.
#define MUONRT_MPI(call) ::muonrt::mpi::check(call, #call, __func__, __LINE__)
