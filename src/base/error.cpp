#include "base/error.hpp"

namespace muonrt {

namespace {
constexpr const char* kUnknown = "MUONRT_ERROR_UNKNOWN";
// These strings are created at startup, while memory is available. They are never freed, because
// threads may read them until the process exits.
const std::string& kNoMessage = *new std::string("there was no memory for this error's message");
const std::string& kExhausted =
    *new std::string("host memory is exhausted; use fewer or smaller buffers");
}  // namespace

const char* status_name(Status status) noexcept {
  switch (status) {
    case Status::kOk:
      return "MUONRT_OK";
    case Status::kSkipped:
      return "MUONRT_SKIPPED";
    case Status::kInvalidArgument:
      return "MUONRT_ERROR_INVALID_ARGUMENT";
    case Status::kInvalidState:
      return "MUONRT_ERROR_INVALID_STATE";
    case Status::kNotSupported:
      return "MUONRT_ERROR_NOT_SUPPORTED";
    case Status::kCallback:
      return "MUONRT_ERROR_CALLBACK";
    case Status::kMismatch:
      return "MUONRT_ERROR_MISMATCH";
    case Status::kOutOfMemory:
      return "MUONRT_ERROR_OUT_OF_MEMORY";
    case Status::kDevice:
      return "MUONRT_ERROR_DEVICE";
    case Status::kComm:
      return "MUONRT_ERROR_COMM";
    case Status::kTimeout:
      return "MUONRT_ERROR_TIMEOUT";
    case Status::kAborted:
      return "MUONRT_ERROR_ABORTED";
    case Status::kUndecided:
      return "MUONRT_ERROR_UNDECIDED";
    case Status::kTorn:
      return "MUONRT_ERROR_TORN";
    case Status::kIo:
      return "MUONRT_ERROR_IO";
    case Status::kCorrupt:
      return "MUONRT_ERROR_CORRUPT";
    case Status::kInternal:
      return "MUONRT_ERROR_INTERNAL";
  }
  return kUnknown;
}

Error::Error(Status status, std::string message, int32_t rank, bool remote,
             size_t text_offset) noexcept
    : status_(status), rank_(rank), remote_(remote), text_offset_(text_offset) {
  try {
    message_ = std::make_shared<const std::string>(std::move(message));
  } catch (const std::bad_alloc&) {
    text_offset_ = 0;
  }
}

const std::string& Error::message() const noexcept {
  if (message_) return *message_;
  return status_ == Status::kOutOfMemory ? kExhausted : kNoMessage;
}

Error Error::reported_by_rank(int32_t peer) const noexcept {
  const int32_t rank = rank_ < 0 ? peer : rank_;
  try {
    const std::string prefix = cat("rank ", peer, " reported: ");
    return Error(status_, prefix + message(), rank, true, prefix.size());
  } catch (const std::bad_alloc&) {
    return Error(status_, rank, true);
  }
}

Error Error::with_rank(int32_t this_rank) const noexcept {
  if (remote_ && rank_ < 0) return *this;  // the transport that reported it has no rank numbers
  const int32_t rank = rank_ < 0 ? this_rank : rank_;
  try {
    const std::string prefix = cat("rank ", rank, ": ");
    return Error(status_, prefix + message().substr(text_offset_), rank, rank != this_rank,
                 prefix.size());
  } catch (const std::bad_alloc&) {
    return Error(status_, rank, rank != this_rank);
  }
}

Error Error::as_comm_error() const noexcept {
  if (status_ != Status::kOutOfMemory) return *this;
  Error out = message_ ? *this
                       : error_with_message(
                             status_, [] { return kExhausted; }, rank_, remote_);
  out.status_ = Status::kComm;
  return out;
}

Error Error::with_context(const std::string& prefix, const std::string& suffix) const {
  try {
    return Error(status_, cat(prefix, message(), suffix), rank_, remote_,
                 text_offset_ > 0 ? prefix.size() + text_offset_ : 0);
  } catch (const std::bad_alloc&) {
    return *this;
  }
}

Error current_error() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Status::kOutOfMemory);
  } catch (const std::exception& error) {
    return make_error(Status::kInternal, "internal: ", error.what());
  } catch (...) {
    return make_error(Status::kInternal, "internal: an exception of unknown type");
  }
}

bool is_status(int32_t value) noexcept {
  return status_name(static_cast<Status>(value)) != kUnknown;
}

}  // namespace muonrt
