#pragma once

#include "base/error.hpp"

namespace muonrt {

/// Returns true if `value` is a status that denotes an error.
inline bool is_error(int32_t value) noexcept {
  const auto status = static_cast<Status>(value);
  return is_status(value) && status != Status::kOk && status != Status::kSkipped;
}

/// Returns the status that a peer sent, or COMM if `value` does not denote an error.
inline Status status_of_peer(int32_t value) noexcept {
  return is_error(value) ? static_cast<Status>(value) : Status::kComm;
}

}  // namespace muonrt
