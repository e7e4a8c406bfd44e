#pragma once

#include "base/error.hpp"

namespace muonrt {

/// What a peer says that its error is; COMM for what is none.
inline Status status_of_peer(int32_t value) {
  const auto status = static_cast<Status>(value);
  const bool error = is_status(value) && status != Status::kOk && status != Status::kSkipped;
  return error ? status : Status::kComm;
}

}  // namespace muonrt
