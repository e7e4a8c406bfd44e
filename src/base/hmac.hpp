#pragma once

#include <initializer_list>
#include <string_view>

#include "base/sha256.hpp"

namespace muonrt {

/// Returns the keyed digest of a message. Key and message are the concatenations of their parts.
/// Does not allocate. Source: RFC 2104.
using TextParts = std::initializer_list<std::string_view>;
Sha256::Digest hmac_sha256(TextParts key, TextParts message);

/// Returns whether both are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(const Sha256::Digest& a, const Sha256::Digest& b);

}  // namespace muonrt
