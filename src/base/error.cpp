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

bool is_status(int32_t value) noexcept {
  return status_name(static_cast<Status>(value)) != kUnknown;
}

}  // namespace muonrt
