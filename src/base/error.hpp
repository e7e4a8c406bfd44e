#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace muonrt {

/// The outcome of a call. The values equal those of `muonrt_status_t` (include/muonrt/base.h).
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

/// A short name for the status that most checks use.
constexpr Status kInvalidArg = Status::kInvalidArgument;

/// Returns the name of the status, or "MUONRT_ERROR_UNKNOWN" for an unknown value.
const char* status_name(Status status) noexcept;
bool is_status(int32_t value) noexcept;

/// The only exception type of the library. Messages have the form "where: problem with values; what
/// to do". Code must branch on status() and the other fields, never on the message. Member
/// functions do not throw: if there is not enough memory for a message, it becomes shorter or
/// empty, and the other fields are still set.
class Error : public std::exception {
 public:
  Error(Status status, std::string message, int32_t rank = -1, bool remote = false) noexcept
      : Error(status, std::move(message), rank, remote, 0) {}
  /// Creates an error without its own message. message() then returns a general text for the
  /// status.
  explicit Error(Status status, int32_t rank = -1, bool remote = false) noexcept
      : status_(status), rank_(rank), remote_(remote) {}

  Status status() const noexcept { return status_; }
  const std::string& message() const noexcept;
  const char* what() const noexcept override { return message().c_str(); }
  /// Returns the rank on which the error occurred, or -1 for this rank or an unknown rank.
  int32_t rank() const noexcept { return rank_; }
  /// Returns true if a peer reported the error to this rank.
  bool is_remote() const noexcept { return remote_; }

  /// Returns the error that this rank throws when `peer` has reported this error: "rank 3 reported:
  /// ...".
  Error reported_by_rank(int32_t peer) const noexcept;
  /// Returns the error that all ranks throw after they have agreed on it: "rank 3: ...". The
  /// message names the rank where the error occurred, and not the rank that reported it.
  /// @param this_rank  The calling rank, which is named if the error occurred here.
  Error with_rank(int32_t this_rank) const noexcept;
  /// Returns the error that later calls report after this error has made a communicator unusable.
  /// OUT_OF_MEMORY becomes COMM. Otherwise the caller might retry, which cannot succeed with an
  /// unusable communicator.
  Error as_comm_error() const noexcept;
  /// Returns the error with `prefix` before its message and `suffix` after it.
  Error with_context(const std::string& prefix, const std::string& suffix = "") const;

 private:
  Error(Status status, std::string message, int32_t rank, bool remote, size_t text_offset) noexcept;

  Status status_;
  int32_t rank_;
  bool remote_;
  /// The length of the message up to and including the part that names a rank.
  size_t text_offset_ = 0;
  std::shared_ptr<const std::string> message_;  // shared, so copying an error does not allocate
};

/// Returns an error with the message that `make_message` returns, or without a message if there is
/// not enough memory for it.
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

/// Converts the exception that is being handled to an Error. std::bad_alloc becomes OUT_OF_MEMORY,
/// and any other exception becomes INTERNAL. Works without free memory.
Error current_error() noexcept;

}  // namespace muonrt

/// Marks a function that catches abi::__forced_unwind, the exception of pthread_exit() and thread
/// cancellation. UBSan must not check the function for null references, because GCC binds one in
/// the handler. The function must not be inlined, because it would then get the attributes of its
/// caller.
#define MUONRT_CATCHES_UNWINDING __attribute__((noinline, no_sanitize("null")))

/// Checks an argument of the caller in all builds. The message parts are evaluated only if the
/// condition is false.
#define MUONRT_REQUIRE(condition, status, ...)                         \
  do {                                                                 \
    if (!(condition)) throw ::muonrt::make_error(status, __VA_ARGS__); \
  } while (false)

/// Checks an invariant of the library. Throws INTERNAL if it does not hold; never terminates the
/// process.
#define MUONRT_CHECK_INTERNAL(condition, ...)                                      \
  MUONRT_REQUIRE(condition, ::muonrt::Status::kInternal, "internal: ", #condition, \
                 " does not hold (", __VA_ARGS__, "); please report it with this message")
