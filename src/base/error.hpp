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

/// What most checks report.
constexpr Status kInvalidArg = Status::kInvalidArgument;

/// "MUONRT_ERROR_UNKNOWN" for a value that is none of them.
const char* status_name(Status status) noexcept;
bool is_status(int32_t value) noexcept;

/// The one exception type of the library. Message grammar: problem (why); what to do. Code decides
/// by the fields, never by the message's words. Nothing here throws: without memory a message is
/// shortened or left out, the other fields stay.
class Error : public std::exception {
 public:
  Error(Status status, std::string message, int32_t rank = -1, bool secondhand = false) noexcept
      : Error(status, std::move(message), rank, secondhand, 0) {}
  /// With what can be said by the status alone.
  explicit Error(Status status, int32_t rank = -1, bool secondhand = false) noexcept
      : status_(status), rank_(rank), remote_(secondhand) {}

  Status status() const noexcept { return status_; }
  const std::string& message() const noexcept;
  const char* what() const noexcept override { return message().c_str(); }
  /// Where it happened; -1: here, or not known.
  int32_t rank() const noexcept { return rank_; }
  /// Whether a peer has told this rank of it.
  bool is_remote() const noexcept { return remote_; }

  /// As a rank hears it from a peer: "rank 3 reported: ...".
  Error reported_by_rank(int32_t peer) const noexcept;
  /// As all ranks tell it who have agreed on it: "rank 3: ..." and no word of who reported it.
  /// @param here  the rank that asks, where it happened if nobody has told of it.
  Error with_rank(int32_t here) const noexcept;
  /// Of a communicator that has ended, perhaps for want of memory: that is COMM then, for after
  /// OUT_OF_MEMORY a step may be repeated.
  Error as_comm_error() const noexcept;
  /// The same error with more words around it.
  Error with_context(const std::string& front, const std::string& behind = "") const;

 private:
  Error(Status status, std::string message, int32_t rank, bool secondhand,
        size_t words_at) noexcept;

  Status status_;
  int32_t rank_;
  bool remote_;
  size_t text_offset_ = 0;  // behind what says whose error it is, and what was put in front of that
  std::shared_ptr<const std::string> message_;  // shared: a copy takes no memory
};

/// An error with the message that `words` makes, or without one where there is no memory for it.
template <class Words>
Error error_with_message(Status status, const Words& words, int32_t rank = -1,
                         bool secondhand = false) noexcept {
  try {
    return Error(status, words(), rank, secondhand);
  } catch (const std::bad_alloc&) {
    return Error(status, rank, secondhand);
  }
}

/// The same, of the parts.
template <class... Parts>
Error make_error(Status status, const Parts&... parts) noexcept {
  return error_with_message(status, [&] { return cat(parts...); });
}

/// The exception that is being handled, as an Error: any other than an Error is OUT_OF_MEMORY or
/// INTERNAL. Needs no memory.
Error current_error() noexcept;

}  // namespace muonrt

/// For a function that catches abi::__forced_unwind (a thread ends: pthread_exit, cancellation), of
/// which GCC makes a reference to null that UBSan would report. Inlined, it would be checked as its
/// caller is.
#define MUONRT_CATCHES_UNWINDING __attribute__((noinline, no_sanitize("null")))

/// Caller's mistake: always checked. The message parts are built only when the condition fails.
#define MUONRT_REQUIRE(condition, status, ...)                         \
  do {                                                                 \
    if (!(condition)) throw ::muonrt::make_error(status, __VA_ARGS__); \
  } while (false)

/// Our own mistake: reported as INTERNAL, never ends the process.
#define MUONRT_CHECK_INTERNAL(condition, ...)                                      \
  MUONRT_REQUIRE(condition, ::muonrt::Status::kInternal, "internal: ", #condition, \
                 " does not hold (", __VA_ARGS__, "); please report it with this message")
