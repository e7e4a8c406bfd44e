#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace muonrt {

/// Outcome of a call; the values are those of `muonrt_status_t` (include/muonrt/base.h).
enum class Status : int32_t {
  kOk = 0,
  kSkipped = 1,
  kInvalidArgument = 10,
  kInvalidState = 11,
  kNotSupported = 12,
  kCallback = 13,
  kMismatch = 20,
  kOutOfMemory = 30,
  kDevice = 40,
  kComm = 50,
  kTimeout = 51,
  kAborted = 52,
  kUndecided = 60,
  kTorn = 61,
  kIo = 70,
  kCorrupt = 71,
  kInternal = 90,
};

/// Short for the status of most checks.
constexpr Status kInvalidArg = Status::kInvalidArgument;

/// Returns the name, or "MUONRT_ERROR_UNKNOWN" for an unknown value.
const char* status_name(Status status) noexcept;
bool is_status(int32_t value) noexcept;

/// The only exception type of the library. Messages follow the grammar
/// "where: problem with values; what to do". Code must decide by the fields, never by the message.
/// The class does not throw: if there is no memory for a message, the message becomes shorter or
/// empty, and the other fields stay.
class Error : public std::exception {
 public:
  Error(Status status, std::string message, int32_t rank = -1, bool remote = false) noexcept
      : Error(status, std::move(message), rank, remote, 0) {}
  /// An error without its own message; message() returns a text for the status.
  explicit Error(Status status, int32_t rank = -1, bool remote = false) noexcept
      : status_(status), rank_(rank), remote_(remote) {}

  Status status() const noexcept { return status_; }
  const std::string& message() const noexcept;
  const char* what() const noexcept override { return message().c_str(); }
  /// The rank on which the error occurred; -1: this rank, or unknown.
  int32_t rank() const noexcept { return rank_; }
  /// True if a peer reported the error.
  bool is_remote() const noexcept { return remote_; }

  /// Returns the error as received from `peer`: "rank 3 reported: ...".
  Error reported_by_rank(int32_t peer) const noexcept;
  /// Returns the error as all ranks return it after they have agreed on it: "rank 3: ...", without
  /// the rank that reported it.
  /// @param this_rank  the calling rank; the error occurred there if no peer reported it.
  Error with_rank(int32_t this_rank) const noexcept;
  /// Returns the error of a communicator that has ended. OUT_OF_MEMORY becomes COMM, because a
  /// caller may repeat a step after OUT_OF_MEMORY.
  Error as_comm_error() const noexcept;
  /// Returns the error with `prefix` before and `suffix` after its message.
  Error with_context(const std::string& prefix, const std::string& suffix = "") const;

 private:
  Error(Status status, std::string message, int32_t rank, bool remote, size_t text_offset) noexcept;

  Status status_;
  int32_t rank_;
  bool remote_;
  size_t text_offset_ = 0;  // length of the prefix that names a rank, and of everything before it
  std::shared_ptr<const std::string> message_;  // shared, so copying an error does not allocate
};

/// Returns an error with the message that `make_message` returns, or without a message if there is
/// no memory for it.
template <class Function>
Error error_with_message(Status status, const Function& make_message, int32_t rank = -1,
                         bool remote = false) noexcept {
  try {
    return Error(status, make_message(), rank, remote);
  } catch (const std::bad_alloc&) {
    return Error(status, rank, remote);
  }
}

/// Returns an error whose message is the concatenation of `parts`.
template <class... Parts>
Error make_error(Status status, const Parts&... parts) noexcept {
  return error_with_message(status, [&] { return cat(parts...); });
}

/// Returns the exception that is being handled as an Error. std::bad_alloc becomes OUT_OF_MEMORY,
/// any other exception INTERNAL. Works without memory.
Error current_error() noexcept;

}  // namespace muonrt

/// For a function that catches abi::__forced_unwind (pthread_exit and thread cancellation). GCC
/// binds a null reference there, which UBSan would report. If the function were inlined, the
/// attributes of its caller would apply instead.
#define MUONRT_CATCHES_UNWINDING __attribute__((noinline, no_sanitize("null")))

/// Checks an argument of the caller, in every build. The message parts are evaluated only if the
/// condition fails.
#define MUONRT_REQUIRE(condition, status, ...)                         \
  do {                                                                 \
    if (!(condition)) throw ::muonrt::make_error(status, __VA_ARGS__); \
  } while (false)

/// Checks an invariant of the library. Throws INTERNAL; never ends the process.
#define MUONRT_CHECK_INTERNAL(condition, ...)                                      \
  MUONRT_REQUIRE(condition, ::muonrt::Status::kInternal, "internal: ", #condition, \
                 " does not hold (", __VA_ARGS__, "); please report it with this message")
