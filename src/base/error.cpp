#include "base/error.hpp"

namespace muonrt {

namespace {
constexpr const char* kUnknown = "MUONRT_ERROR_UNKNOWN";
// Made while there is memory for them; threads may ask for them until the process has ended.
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

Error::Error(Status status, std::string message, int32_t rank, bool secondhand,
             size_t words_at) noexcept
    : status_(status), rank_(rank), remote_(secondhand), text_offset_(words_at) {
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
    const std::string front = cat("rank ", peer, " reported: ");
    return Error(status_, front + message(), rank, true, front.size());
  } catch (const std::bad_alloc&) {
    return Error(status_, rank, true);
  }
}

Error Error::with_rank(int32_t here) const noexcept {
  if (remote_ && rank_ < 0) return *this;  // of a transport that gives no numbers
  const int32_t rank = rank_ < 0 ? here : rank_;
  try {
    const std::string front = cat("rank ", rank, ": ");
    return Error(status_, front + message().substr(text_offset_), rank, rank != here, front.size());
  } catch (const std::bad_alloc&) {
    return Error(status_, rank, rank != here);
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

Error Error::with_context(const std::string& front, const std::string& behind) const {
  try {
    return Error(status_, cat(front, message(), behind), rank_, remote_,
                 text_offset_ > 0 ? front.size() + text_offset_ : 0);
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
