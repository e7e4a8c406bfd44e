#pragma once

#include <initializer_list>
#include <string_view>

#include "base/sha256.hpp"

namespace muonrt {

/// Returns the HMAC-SHA-256 of a message. The key and the message are each given as parts, which
/// are concatenated. Does not allocate. Source: RFC 2104.
using TextParts = std::initializer_list<std::string_view>;
Sha256::Digest hmac_sha256(TextParts key, TextParts message);

/// Returns true if the two digests are equal. The duration of the comparison does not depend on the
/// position of the first difference.
bool equal_in_constant_time(const Sha256::Digest& a, const Sha256::Digest& b);

}  // namespace muonrt
