#pragma once

#include <string_view>

#include "base/sha256.hpp"

namespace muonrt {

/// Keyed digest of `message`. Source: RFC 2104.
Sha256::Digest hmac_sha256(std::string_view key, std::string_view message);

/// Whether both are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(const Sha256::Digest& a, const Sha256::Digest& b);

}  // namespace muonrt
