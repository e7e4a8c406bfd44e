#include "base/error.hpp"

namespace muonrt {

namespace {
constexpr const char* kUnknown = "MUONRT_ERROR_UNKNOWN";
}

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

Error Error::told_by(int32_t peer) const {
  const std::string front = cat("rank ", peer, " reported: ");
  Error out(status_, front + message_, rank_ < 0 ? peer : rank_, true);
  out.words_at_ = front.size();
  return out;
}

Error Error::named(int32_t here) const {
  if (secondhand_ && rank_ < 0) return *this;  // of a transport that gives no numbers
  const int32_t rank = rank_ < 0 ? here : rank_;
  const std::string front = cat("rank ", rank, ": ");
  Error out(status_, front + message_.substr(words_at_), rank, rank != here);
  out.words_at_ = front.size();
  return out;
}

Error Error::between(const std::string& front, const std::string& behind) const {
  Error out(status_, cat(front, message_, behind), rank_, secondhand_);
  if (words_at_ > 0) out.words_at_ = front.size() + words_at_;
  return out;
}

bool is_status(int32_t value) noexcept {
  return status_name(static_cast<Status>(value)) != kUnknown;
}

}  // namespace muonrt
