#include "base/hmac.hpp"

#include <cstring>

namespace muonrt {

Sha256::Digest hmac_sha256(TextParts key, TextParts message) {
  std::array<unsigned char, 64> inner{}, outer{};
  Sha256 hash;
  size_t bytes = 0;
  for (const std::string_view part : key) {
    hash.update(part);
    if (bytes + part.size() <= inner.size())
      part.copy(reinterpret_cast<char*>(inner.data()) + bytes, part.size());
    bytes += part.size();
  }
  if (bytes > inner.size()) {
    inner = {};
    const Sha256::Digest shorter = hash.digest();
    std::memcpy(inner.data(), shorter.data(), shorter.size());
  }
  for (size_t i = 0; i < inner.size(); ++i) {
    outer[i] = inner[i] ^ 0x5c;
    inner[i] ^= 0x36;
  }
  Sha256 first, second;
  first.update(inner.data(), inner.size());
  for (const std::string_view part : message) first.update(part);
  const Sha256::Digest digest = first.digest();
  second.update(outer.data(), outer.size());
  second.update(digest.data(), digest.size());
  return second.digest();
}

bool equal_in_constant_time(const Sha256::Digest& a, const Sha256::Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= unsigned{a[i]} ^ unsigned { b[i] };
  return difference == 0;
}

}  // namespace muonrt
